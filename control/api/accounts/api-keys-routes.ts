import { type Caller, endWithKey } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import {
  ApiKeyList,
  ApiKeyPath,
  CreateApiKey,
  CreatedApiKey,
  DeletedApiKey,
} from '../../../shared/schemas/api-key.ts';
import { PageQuery, success, successPage } from '../../../shared/schemas/common.ts';
import { presentApiKey } from './present-api-key.ts';
import { route } from '../../http/route.ts';
import { parseEnd } from '../../http/credential-ends.ts';
import { deleteApiKey } from './delete-api-key.ts';

const tag = 'API keys';

const listApiKeys = route({
  method: 'get',
  path: '/api/tokens',
  operationId: 'listApiKeys',
  scope: 'admin',
  summary: 'List the API keys of the account, oldest first',
  description: 'The keys themselves are never shown again.',
  tag,
  query: PageQuery,
  replies: { 200: successPage(ApiKeyList) },
  errors: ['bad_request'],
  async handle({ deps, caller, query }) {
    const page = await deps.directory.apiKeys.list(caller.accountId, query);
    const tokens = page.items.map(presentApiKey);
    return { status: 200, data: { tokens }, nextCursor: page.nextCursor };
  },
});

/** Written in the API's form of times, whatever zone and precision the caller's had. */
function keyEnd(caller: Caller, wanted: string | undefined): string | undefined {
  const end = endWithKey(caller, wanted === undefined ? undefined : parseEnd(wanted));
  return end === undefined ? undefined : new Date(end).toISOString();
}

const createApiKey = route({
  method: 'post',
  path: '/api/tokens',
  operationId: 'createApiKey',
  scope: 'admin',
  event: 'key.created',
  summary: 'Create an API key',
  description:
    'The whole key is in this answer and nowhere else. It has all rights of the account unless `scopes` says which, and ends no later than the key that makes it.',
  tag,
  body: CreateApiKey,
  idempotent: true,
  replies: { 201: success(CreatedApiKey) },
  errors: [],
  async handle({ deps, caller, body, note }) {
    const account = { id: caller.accountId, name: caller.organization };
    const input = { ...body, expiresAt: keyEnd(caller, body.expiresAt) };
    const { record, token } = await deps.directory.apiKeys.create(account, input);
    note({ apiKeyId: record.id });
    return { status: 201, data: { ...presentApiKey(record), token } };
  },
});

const deleteApiKeyRoute = route({
  method: 'delete',
  path: '/api/tokens/{id}',
  operationId: 'deleteApiKey',
  scope: 'admin',
  event: 'key.deleted',
  summary: 'Delete an API key; it stops working at once',
  description:
    'Its webhooks and the ports that it made public end with it; the answer names them. Requests with the key that are under way end as they would have.',
  tag,
  params: ApiKeyPath,
  replies: { 200: success(DeletedApiKey) },
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    const ended = await deleteApiKey(deps.directory, caller.accountId, params.id);
    if (ended === undefined) throw new AppError('not_found', `API key ${params.id} not found`);
    return { status: 200, data: { message: 'API key deleted', ended } };
  },
});

export const apiKeyRoutes = [listApiKeys, createApiKey, deleteApiKeyRoute];
