/*
 * Ends with 0 when the control node that has this environment is ready: for health checks of
 * containers. Imports nothing of the project: it is started every few seconds.
 */
import { type IncomingMessage, request as requestPlain } from 'node:http';
import { request as requestEncrypted } from 'node:https';

const { CONTROL_HOST: host = '127.0.0.1', CONTROL_PORT: port, CONTROL_TLS_CERT } = process.env;
const where = { host, port, path: '/readyz', timeout: 5000 };

function end(response: IncomingMessage): void {
  process.exitCode = response.statusCode === 200 ? 0 : 1;
  response.pipe(process.stdout);
}

// The certificate names what callers use, not this address, and nothing is told to the other end.
const request =
  CONTROL_TLS_CERT === undefined || CONTROL_TLS_CERT === ''
    ? requestPlain(where, end)
    : requestEncrypted({ ...where, rejectUnauthorized: false }, end);
request.on('timeout', () => request.destroy(new Error('no answer within 5 s')));
request.on('error', ({ message }) => {
  console.error(message);
  process.exitCode = 1;
});
request.end();
