/* The agent is killed while a container gets or gives up its disk. */
import { isFull } from '../helpers/full.ts';
import { testMountCrashes } from '../helpers/mount-crashes.ts';
import { containerSettings } from '../helpers/sandboxes.ts';

testMountCrashes({
  settings: containerSettings(),
  holding: ['journal hold', 'hold lease', 'mount held disk', 'mount in container'],
  releasing: ['unmount held disk', 'unhold lease', 'journal unhold'],
  moments: isFull ? ['before', 'after'] : ['after'],
});
