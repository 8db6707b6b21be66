import Type from 'typebox';
import { Message, success } from '../../../shared/schemas/common.ts';
import type { ActivityType } from '../../../shared/activity-types.ts';
import { API_LIMITS } from '../limits.ts';
import {
  Host,
  type HostOrder,
  HostPath,
  JoinReply,
  JoinRequest,
} from '../../../shared/schemas/host.ts';
import { presentHost } from './present-host.ts';
import { route } from '../../http/route.ts';
import { joinHost } from './join-host.ts';
import { fenceHost, findHostEntry, orderHost, removeHost } from './hosts.ts';

const tag = 'Hosts';
const scope = 'operator';

const listHosts = route({
  method: 'get',
  path: '/api/hosts',
  operationId: 'listHosts',
  scope,
  summary: 'List the hosts of the region',
  description:
    'Figures are up to some seconds old. Hosts that are away stay until they are removed.',
  tag,
  replies: { 200: success(Type.Array(Host)) },
  errors: [],
  async handle({ deps }) {
    const entries = await deps.directory.hosts.list();
    const { region } = deps.config.cluster;
    return { status: 200, data: entries.map((entry) => presentHost(entry, region)) };
  },
});

const getHost = route({
  method: 'get',
  path: '/api/hosts/{id}',
  operationId: 'getHost',
  scope,
  summary: 'Show a host',
  description:
    'While it is drained, `sandboxesActive`, `execsRunning` and `disks` count what is left.',
  tag,
  params: HostPath,
  replies: { 200: success(Host) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, params }) {
    const entry = await findHostEntry(deps, params.id);
    return { status: 200, data: presentHost(entry, deps.config.cluster.region) };
  },
});

interface Ordering {
  readonly verb: 'cordon' | 'uncordon' | 'drain';
  readonly order: HostOrder;
  readonly event: ActivityType;
  readonly summary: string;
  readonly description: string;
}

const toOrderRoute = ({ verb, order, event, summary, description }: Ordering) =>
  route({
    method: 'post',
    path: `/api/hosts/{id}/${verb}`,
    operationId: `${verb}Host`,
    scope,
    event,
    summary,
    description: `${description} Kept until another order is given, also for a host that is away. Giving it again changes nothing.`,
    tag,
    params: HostPath,
    replies: { 200: success(Host) },
    errors: ['bad_request', 'not_found'],
    async handle({ deps, params, note }) {
      note({ hostId: params.id });
      const entry = await orderHost(deps, params.id, order);
      return { status: 200, data: presentHost(entry, deps.config.cluster.region) };
    },
  });

const cordonHost = toOrderRoute({
  verb: 'cordon',
  order: 'cordoned',
  event: 'host.cordoned',
  summary: 'Let a host take nothing new',
  description:
    'It gets no new sandboxes, forks included, and no disks; those that are idle are attached elsewhere. Its own sandboxes go on, and may be paused and resumed.',
});

const uncordonHost = toOrderRoute({
  verb: 'uncordon',
  order: 'up',
  event: 'host.uncordoned',
  summary: 'Let a cordoned or drained host work again',
  description: 'Sandboxes that were paused stay so until somebody resumes them.',
});

const drainHost = toOrderRoute({
  verb: 'drain',
  order: 'drained',
  event: 'host.drained',
  summary: 'Take all work from a host',
  description:
    'As cordoned; besides, its running sandboxes are paused, none of its sandboxes is resumed or started, and its disks go as their commands end. Answered when that has begun: read the host until it is `drained`.',
});

const fenceHostRoute = route({
  method: 'post',
  path: '/api/hosts/{id}/fence',
  operationId: 'fenceHost',
  scope,
  event: 'host.fenced',
  summary: 'Say that a host which is away is off',
  description:
    'Other hosts that share its storage of sandboxes then take its sandboxes over: those at rest as they are, those that ran from their disks, with `exit_reason` `host_lost`. The machine must be off, or cut off from the storage. Holds until the host reports again.',
  tag,
  params: HostPath,
  replies: { 200: success(Host) },
  errors: ['bad_request', 'not_found', 'host_in_use'],
  async handle({ deps, params, note }) {
    note({ hostId: params.id });
    const entry = await fenceHost(deps, params.id);
    return { status: 200, data: presentHost(entry, deps.config.cluster.region) };
  },
});

const deleteHost = route({
  method: 'delete',
  path: '/api/hosts/{id}',
  operationId: 'deleteHost',
  scope,
  event: 'host.removed',
  summary: 'Remove a host that will not come back',
  description:
    'Its sandboxes and snapshots are forgotten, and its disks free for other hosts. The machine must be off: two hosts that use one disk destroy its contents. An agent with its id is refused from then on.',
  tag,
  params: HostPath,
  replies: { 200: success(Message) },
  errors: ['bad_request', 'not_found', 'host_in_use'],
  async handle({ deps, params, note }) {
    note({ hostId: params.id });
    await removeHost(deps, params.id);
    return { status: 200, data: { message: 'Host removed' } };
  },
});

const joinHostRoute = route({
  method: 'post',
  path: '/api/hosts/join',
  operationId: 'joinHost',
  scope: 'public',
  event: 'host.joined',
  summary: 'Give a new host the settings of the cluster, for an invitation',
  description:
    'For `berth-agent join`. `scripts/admin host invite` makes the token that the proof is derived from. The first host to show it is the only one to get an answer.',
  tag,
  body: JoinRequest,
  bodyBytesMax: API_LIMITS.joinBodyBytesMax,
  replies: { 200: success(JoinReply) },
  errors: ['forbidden', 'not_found', 'rate_limited'],
  async handle({ deps, body, address, note }) {
    return { status: 200, data: await joinHost(deps, body, { address, note }) };
  },
});

export const hostRoutes = [
  ...[listHosts, getHost, cordonHost, uncordonHost, drainHost, fenceHostRoute, deleteHost],
  joinHostRoute,
];
