import type { Disk, Sandbox, SandboxInfo } from '@berth/sdk';
import { z } from 'zod';
import type { Call } from './tool.ts';

/* Fields that several tools take or answer, and the things that they name. */

export const sandboxField = z.string().min(1).max(100).describe('Id or name of the sandbox.');
export const diskField = z.string().min(1).max(100).describe('Id (dsk-…) or name of the disk.');
export const processField = z.string().min(1).max(64).describe('process_id of process_start.');

export const pathField = z
  .string()
  .max(4095)
  .regex(/^\/[^\0]*$/u, 'must be an absolute path')
  .describe('Absolute path in the sandbox.');

/** How bytes are written in a tool's fields. */
export const encodingField = z
  .enum(['text', 'base64'])
  .default('text')
  .describe('text: UTF-8. base64: for bytes of any kind.');

export const commandFields = {
  sandbox: sandboxField,
  command: z.string().min(1).max(1_000_000).describe('Shell command, run by /bin/sh -c.'),
  cwd: pathField.optional().describe("Working directory; the image's own when omitted."),
  env: z
    .record(z.string(), z.string())
    .optional()
    .describe('Variables on top of those of the sandbox.'),
};

export const sandboxFields = {
  sandbox_id: z.string(),
  name: z.string(),
  status: z
    .string()
    .describe('pending, running, pausing, paused, stopping, stopped, exited, failed'),
  image: z.string().optional(),
  vcpu_count: z.number(),
  mem_size_mib: z.number(),
  copy_hook: z.string().optional(),
  copy_hook_result: z
    .object({
      status: z.string(),
      exit_code: z.number().optional(),
      message: z.string().optional(),
    })
    .optional()
    .describe('How the copy_hook of this copy ended; the copy continues anyway.'),
  exit_reason: z.string().optional(),
  exit_message: z.string().optional(),
  created_at: z.string().optional(),
};

export const describeSandbox = (
  info: SandboxInfo,
): z.output<z.ZodObject<typeof sandboxFields>> => ({
  sandbox_id: info.sandbox_id,
  name: info.name,
  status: info.status,
  image: info.base_image ?? undefined,
  vcpu_count: info.vcpu_count,
  mem_size_mib: info.mem_size_mib,
  copy_hook: info.copy_hook,
  copy_hook_result: info.copy_hook_result,
  exit_reason: info.exit_reason ?? undefined,
  exit_message: info.exit_message ?? undefined,
  created_at: info.created_at,
});

const SANDBOX_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/u;
const DISK_ID = /^dsk-[0-9a-f]{16}$/u;

/** Nothing has this id or name; the code is that of the API. */
class NotFound extends Error {
  readonly code = 'not_found';
}

/** @throws NotFound, and what the API says */
export async function findSandbox({ berth, signal }: Call, idOrName: string): Promise<Sandbox> {
  if (SANDBOX_ID.test(idOrName)) return berth.sandboxes.get(idOrName, { signal });
  const found = await berth.sandboxes.find(idOrName, { signal });
  if (found === undefined) throw new NotFound(`there is no sandbox named ${idOrName}`);
  return found;
}

/** @throws NotFound, and what the API says */
export async function findDisk({ berth, signal }: Call, idOrName: string): Promise<Disk> {
  if (DISK_ID.test(idOrName)) return berth.disks.get(idOrName, { signal });
  const found = await berth.disks.find(idOrName, { signal });
  if (found === undefined) throw new NotFound(`there is no disk named ${idOrName}`);
  return found;
}

/** The fields that are there. */
export const defined = <T extends object>(
  fields: T,
): { [K in keyof T]?: Exclude<T[K], undefined> } =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>;
  };
