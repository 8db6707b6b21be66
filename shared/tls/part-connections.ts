import { Agent as HttpAgent, type AgentOptions, type RequestOptions } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import type { Certificates } from './certificates.ts';

/**
 * The cluster's own certificates (CLUSTER_TLS_CERT and others), for the connections between its
 * parts; undefined where these are not encrypted.
 */
export type ClusterTls = Certificates | undefined;

/**
 * Options of a single connection to another part. With certificates it speaks TLS whatever the
 * part's URL says, so that nobody who could change that URL turns encryption off.
 */
export const partTlsOptions = (tls: ClusterTls): { secureContext?: Certificates['context'] } =>
  tls === undefined ? {} : { secureContext: tls.context };

/** An agent that connects with the cluster's certificate as it is at the time. */
class MutualTlsAgent extends HttpsAgent {
  readonly #certificates: Certificates;

  constructor(certificates: Certificates, options: AgentOptions) {
    super({ ...options, maxCachedSessions: 0 }); // A session would outlive its certificate.
    this.#certificates = certificates;
  }

  override createConnection(
    options: RequestOptions,
    callback?: Parameters<HttpsAgent['createConnection']>[1],
  ): ReturnType<HttpsAgent['createConnection']> {
    const own = { ...options, ...partTlsOptions(this.#certificates) };
    return super.createConnection(own, callback);
  }
}

/** Keeps connections to other parts alive. */
export const partAgent = (tls: ClusterTls, options: AgentOptions): HttpAgent =>
  tls === undefined ? new HttpAgent(options) : new MutualTlsAgent(tls, options);
