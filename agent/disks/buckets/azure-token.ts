import { parseJson } from '../../../shared/json.ts';
import { toError } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../limits.ts';
import type { BucketCredentials } from '../../../shared/schemas/disk-bucket.ts';
import { BucketError } from './bucket.ts';

/** An access token as Azure's clients take it; they keep it until shortly before it expires. */
interface AccessToken {
  readonly token: string;
  readonly expiresOnTimestamp: number;
}

interface TokenReply {
  readonly access_token?: unknown;
  /** Seconds. */
  readonly expires_in?: unknown;
  readonly error?: unknown;
}

/**
 * Gets tokens of an application of Microsoft Entra ID by the client credentials grant (RFC 6749,
 * 4.4). Whatever a storage answers cannot change where the secret is sent: only the operator's
 * `AZURE_AUTHORITY_HOST` says that.
 */
export class AzureToken {
  readonly #url: string;
  readonly #credentials: BucketCredentials;

  constructor(authority: string, credentials: BucketCredentials) {
    const tenant = encodeURIComponent(credentials.tenantId ?? '');
    this.#url = `${authority}/${tenant}/oauth2/v2.0/token`;
    this.#credentials = credentials;
  }

  /** @throws BucketError */
  async getToken(scopes: string | string[]): Promise<AccessToken> {
    const { clientId = '', clientSecret = '' } = this.#credentials;
    const body = new URLSearchParams({
      grant_type: 'client_credentials',
      client_id: clientId,
      client_secret: clientSecret,
      scope: [scopes].flat().join(' '),
    });
    const { status, reply } = await this.#ask(body);
    const { access_token: token, expires_in: seconds } = reply;
    if (status === 200 && typeof token === 'string' && typeof seconds === 'number') {
      return { token, expiresOnTimestamp: Date.now() + seconds * 1000 };
    }
    if (status === 429 || status >= 500) {
      throw new BucketError('busy', `the tenant's token service does not answer now (${status})`);
    }
    const detail = typeof reply.error === 'string' ? reply.error : String(status);
    const message = `the tenant does not know the application or its secret (${detail.slice(0, 80)})`;
    throw new BucketError('auth', message);
  }

  async #ask(body: URLSearchParams): Promise<{ status: number; reply: TokenReply }> {
    try {
      const signal = AbortSignal.timeout(DISK_LIMITS.bucketSilenceMsMax);
      const answer = await fetch(this.#url, { method: 'POST', body, redirect: 'error', signal });
      const text = await answer.text();
      return { status: answer.status, reply: toReply(text) };
    } catch (error) {
      const cause = toError(error);
      throw new BucketError('away', "the tenant's token service cannot be reached", { cause });
    }
  }
}

function toReply(text: string): TokenReply {
  try {
    const value = parseJson(text);
    return typeof value === 'object' && value !== null ? value : {};
  } catch {
    return {};
  }
}
