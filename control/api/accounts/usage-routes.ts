import { monthOf } from '../../../shared/directory/usage.ts';
import { success } from '../../../shared/schemas/common.ts';
import { Usage, UsageQuery } from '../../../shared/schemas/usage.ts';
import { route } from '../../http/route.ts';

const getUsage = route({
  method: 'get',
  path: '/api/usage',
  operationId: 'getUsage',
  scope: 'read',
  summary: 'Show what the account used in a month, and its limits',
  description: 'Measured figures, up to some seconds ago. Months are kept for a year.',
  tag: 'Account',
  query: UsageQuery,
  replies: { 200: success(Usage) },
  errors: ['bad_request'],
  async handle({ deps, caller, query: { month = monthOf(Date.now()) } }) {
    const { directory, config } = deps;
    const [figures, limits] = await Promise.all([
      directory.usage.get(caller.accountId, month),
      directory.accountLimits.get(caller.accountId),
    ]);
    return { status: 200, data: { month, region: config.cluster.region, ...figures, limits } };
  },
});

export const usageRoutes = [getUsage];
