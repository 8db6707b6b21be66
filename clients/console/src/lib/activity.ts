import type { ActivityEvent } from '@berth/sdk';
import {
  type ActivityType,
  activityTypes,
  webhookEventTypes,
} from '../../../../shared/activity-types.ts';
import { linkTo } from './router.ts';

export { activityTypes, webhookEventTypes };

/** The thing that an event type is about: `disk` of `disk.user_added`. */
export const thingOf = (type: string): string => type.split('.')[0] ?? '';

/** The change in words: `user added`. */
export const changeOf = (type: string): string =>
  type.slice(type.indexOf('.') + 1).replaceAll('_', ' ');

export const things: readonly string[] = [...new Set(activityTypes.map(thingOf))];

export const typesOf = (thing: string): ActivityType[] =>
  activityTypes.filter((type) => thingOf(type) === thing);

export const webhookTypesOf = (thing: string): (typeof webhookEventTypes)[number][] =>
  webhookEventTypes.filter((type) => thingOf(type) === thing);

const textOf = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined;

/** The thing that an event is about, and its page where it has one. */
export function subjectOf({ eventType, diskId, details }: ActivityEvent): {
  readonly id: string | undefined;
  readonly href: string | undefined;
} {
  const params = (details['params'] ?? {}) as Readonly<Record<string, unknown>>;
  const sandbox = textOf(details['sandboxId']) ?? textOf(params['sid']);
  switch (thingOf(eventType)) {
    case 'disk': {
      const [first] = Array.isArray(details['diskIds']) ? (details['diskIds'] as unknown[]) : [];
      const id = diskId ?? textOf(first);
      return { id, href: id === undefined ? undefined : linkTo(['disks', id]) };
    }
    case 'sandbox':
      return {
        id: sandbox,
        href: sandbox === undefined ? undefined : linkTo(['sandboxes', sandbox]),
      };
    default: {
      const names = ['snapshotId', 'imageId', 'apiKeyId', 'webhookId'];
      const named = names.map((name) => textOf(details[name])).find(Boolean);
      return { id: named ?? Object.values(params).map(textOf).find(Boolean), href: undefined };
    }
  }
}

/** How the call ended, as its record says. */
export const outcomeOf = ({ level }: ActivityEvent): 'done' | 'refused' | 'failed' =>
  ({ info: 'done', warning: 'refused', error: 'failed' } as const)[level];
