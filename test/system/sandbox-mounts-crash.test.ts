/* The agent is killed while a virtual machine gets or gives up its disk. */
import { isFull } from '../helpers/full.ts';
import { testMountCrashes } from '../helpers/mount-crashes.ts';
import { sandboxSettings } from '../helpers/sandboxes.ts';

// Holding and releasing are the same for containers, whose tests go through each step of them.
testMountCrashes({
  settings: sandboxSettings(),
  holding: isFull
    ? ['journal hold', 'mount held disk', 'start NFS server', 'configure guest']
    : ['start NFS server', 'configure guest'],
  releasing: ['unmount held disk'],
  moments: isFull ? ['before', 'after'] : ['after'],
});
