import Type from 'typebox';
import { ActivityEvent, ActivityQuery } from '../../../shared/schemas/activity.ts';
import { successPage } from '../../../shared/schemas/common.ts';
import { route } from '../../http/route.ts';

const listActivity = route({
  method: 'get',
  path: '/api/activity',
  operationId: 'listActivity',
  scope: 'read',
  summary: 'List the latest changes that keys of the account asked for, newest first',
  description:
    'Every call that changes something leaves one event, refused ones too. About the last 10,000 are kept, and about the last 1,000 of those that were refused.',
  tag: 'Account',
  query: ActivityQuery,
  replies: { 200: successPage(Type.Array(ActivityEvent)) },
  errors: ['bad_request'],
  async handle({ deps, caller, query }) {
    const page = await deps.directory.activity.list(caller.accountId, query);
    return { status: 200, data: page.items, nextCursor: page.nextCursor };
  },
});

export const activityRoutes = [listActivity];
