import { BerthError } from './errors.ts';
import type { CallOptions, Http } from './http.ts';
import type { BuildImage, ImageInfo } from './types.ts';
import { poll, type WaitOptions } from './waiting.ts';

const READ = { retry: 'repeatable' } as const;

/** An image that sandboxes can be created from. */
export class Image {
  readonly #http: Http;
  #info: ImageInfo;

  /** @internal */
  constructor(http: Http, info: ImageInfo) {
    this.#http = http;
    this.#info = info;
  }

  get id(): string {
    return this.#info.image_id;
  }

  /** The image's record as the API last returned it, with the progress of a build. */
  get info(): ImageInfo {
    return this.#info;
  }

  /** Asks the API anew. @throws NotFoundError */
  async refresh(options: CallOptions = {}): Promise<ImageInfo> {
    this.#info = await getImage(this.#http, this.id, options);
    return this.#info;
  }

  /** Waits until it is built. @throws BerthError `image_failed` */
  async ready(options: WaitOptions = {}): Promise<this> {
    return poll(options, async (call) => {
      const info = this.#info.status === 'building' ? await this.refresh(call) : this.#info;
      if (info.status === 'failed') {
        throw new BerthError('image_failed', info.failure_message ?? 'the build has failed');
      }
      return info.status === 'ready' ? this : undefined;
    });
  }
}

async function getImage(http: Http, id: string, options: CallOptions): Promise<ImageInfo> {
  const params = { path: { image_id: id } };
  const { data } = await http.call(READ, options, (client, init) =>
    client.GET('/api/images/{image_id}', { ...init, params }),
  );
  return data;
}

/** Images of registries, built for sandboxes. */
export class Images {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Begins to build an image, or joins the build that is under way; see {@link Image.ready}. */
  async build(image: BuildImage, options: CallOptions = {}): Promise<Image> {
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/images', { ...init, body: image }),
    );
    return new Image(this.#http, data);
  }

  /** @throws NotFoundError */
  async get(id: string, options: CallOptions = {}): Promise<Image> {
    return new Image(this.#http, await getImage(this.#http, id, options));
  }
}
