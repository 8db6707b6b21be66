import { readFile } from 'node:fs/promises';
import Type, { type TSchema } from 'typebox';
import { compile } from '../../../shared/validate.ts';

/** A rule of an OCI runtime specification's `linux.seccomp` (config-linux.md, "Seccomp"). */
export interface SeccompRule {
  readonly names: string[];
  readonly action: string;
  readonly errnoRet?: number;
  readonly args?: { index: number; value: number; valueTwo: number; op: string }[];
}

export interface SeccompProfile {
  readonly defaultAction: string;
  readonly defaultErrnoRet: number;
  readonly architectures: string[];
  readonly syscalls: SeccompRule[];
}

const Conditions = Type.Object({
  arches: Type.Optional(Type.Array(Type.String())),
  caps: Type.Optional(Type.Array(Type.String())),
});

const Nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);

/** containers-common's seccomp.json: OCI rules with conditions on architecture and capabilities. */
const SourceProfile = Type.Object({
  defaultAction: Type.String(),
  defaultErrnoRet: Type.Integer(),
  archMap: Type.Array(
    Type.Object({ architecture: Type.String(), subArchitectures: Type.Array(Type.String()) }),
  ),
  syscalls: Type.Array(
    Type.Object({
      names: Type.Array(Type.String()),
      action: Type.String(),
      errnoRet: Type.Optional(Type.Integer()),
      args: Type.Optional(
        Nullable(
          Type.Array(
            Type.Object({
              index: Type.Integer(),
              value: Type.Integer(),
              valueTwo: Type.Integer(),
              op: Type.String(),
            }),
          ),
        ),
      ),
      includes: Type.Optional(Conditions),
      excludes: Type.Optional(Conditions),
    }),
  ),
});
type SourceProfile = Type.Static<typeof SourceProfile>;

const checkSource = compile(SourceProfile);

const ARCHITECTURES: Partial<Record<NodeJS.Architecture, { oci: string; names: string[] }>> = {
  x64: { oci: 'SCMP_ARCH_X86_64', names: ['amd64', 'x86', 'x32'] },
  arm64: { oci: 'SCMP_ARCH_AARCH64', names: ['arm64'] },
};

// Allowed by the source profile for nested containers, which a command here has no use for: each
// opens a large part of the kernel to whoever makes a user namespace. io_uring and the key ring
// have a history of escapes.
const WITHDRAWN = new Set([
  ...['mount', 'umount', 'umount2', 'mount_setattr', 'move_mount', 'open_tree', 'pivot_root'],
  ...['fsconfig', 'fsmount', 'fsopen', 'fspick', 'name_to_handle_at', 'open_by_handle_at'],
  ...['unshare', 'setns', 'clone', 'clone3', 'keyctl', 'add_key', 'request_key'],
  ...['io_uring_setup', 'io_uring_enter', 'io_uring_register', 'userfaultfd', 'bpf'],
  ...['perf_event_open', 'vmsplice', 'syslog'],
  // socketcall hides its arguments behind a pointer; C libraries have not used it since 2015.
  ...['socket', 'socketcall'],
]);

// CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET, from linux/sched.h
const NAMESPACE_FLAGS = 0x7e02_0000;

// clone3 hides its flags behind a pointer, so it answers ENOSYS (the default) and C libraries fall
// back to clone, whose flags can be checked.
const CLONE_WITHOUT_NAMESPACES: SeccompRule = {
  names: ['clone'],
  action: 'SCMP_ACT_ALLOW',
  args: [{ index: 0, value: NAMESPACE_FLAGS, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }],
};

// AF_UNIX, AF_INET, AF_INET6 and, but for NETLINK_AUDIT, AF_NETLINK, from linux/socket.h: what the
// container's network namespace confines. AF_VSOCK reaches the hypervisor from any namespace.
const SOCKETS: SeccompRule[] = [
  ...[1, 2, 10].map((family) => [argument(0, 'SCMP_CMP_EQ', family)]),
  [argument(0, 'SCMP_CMP_EQ', 16), argument(2, 'SCMP_CMP_NE', 9)],
].map((args) => ({ names: ['socket'], action: 'SCMP_ACT_ALLOW', args }));

function argument(index: number, op: string, value: number) {
  return { index, op, value, valueTwo: 0 };
}

/** Resolves the conditions of the source profile for one architecture and capability set. */
export function resolveSeccomp(
  source: SourceProfile,
  architecture: NodeJS.Architecture,
  capabilities: readonly string[],
): SeccompProfile {
  const own = ARCHITECTURES[architecture];
  if (own === undefined) throw new Error(`no seccomp profile for ${architecture}`);
  const applies = (rule: SourceProfile['syscalls'][number]): boolean => {
    const { arches = [], caps = [] } = rule.includes ?? {};
    const excluded = rule.excludes?.caps ?? [];
    return (
      (arches.length === 0 || arches.some((name) => own.names.includes(name))) &&
      caps.every((name) => capabilities.includes(name)) &&
      !excluded.some((name) => capabilities.includes(name))
    );
  };
  const rules = source.syscalls.filter(applies).map(({ names, action, errnoRet, args }) => ({
    names: names.filter((name) => !WITHDRAWN.has(name)),
    action,
    ...(errnoRet === undefined ? {} : { errnoRet }),
    ...(args == null || args.length === 0 ? {} : { args }),
  }));
  return {
    defaultAction: source.defaultAction,
    defaultErrnoRet: source.defaultErrnoRet,
    architectures: source.archMap
      .filter((entry) => entry.architecture === own.oci)
      .flatMap((entry) => [entry.architecture, ...entry.subArchitectures]),
    syscalls: [
      ...rules.filter((rule) => rule.names.length > 0),
      CLONE_WITHOUT_NAMESPACES,
      ...SOCKETS,
    ],
  };
}

/** @throws Error when the file is missing or is not such a profile */
export async function readSeccomp(
  path: string,
  capabilities: readonly string[],
): Promise<SeccompProfile> {
  const source = checkSource(JSON.parse(await readFile(path, 'utf8')), path);
  return resolveSeccomp(source, process.arch, capabilities);
}
