import { monthOf } from '../../shared/directory/usage.ts';
import { success } from '../../shared/schemas/common.ts';
import { Usage, UsageQuery } from '../../shared/schemas/usage.ts';
import { route } from '../http/route.ts';

const getUsage = route({
  method: 'get',
  path: '/api/usage',
  operationId: 'getUsage',
  scope: 'read',
  summary: 'Show what the account used in a month',
  description: 'Measured figures, up to some seconds ago. Months are kept for a year.',
  tag: 'Account',
  query: UsageQuery,
  replies: { 200: success(Usage) },
  errors: ['bad_request'],
  async handle({ deps, caller, query: { month = monthOf(Date.now()) } }) {
    const figures = await deps.directory.usage.get(caller.accountId, month);
    return { status: 200, data: { month, region: deps.config.cluster.region, ...figures } };
  },
});

export const usageRoutes = [getUsage];
