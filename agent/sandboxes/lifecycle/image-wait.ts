/** The bringing of one sandbox's image; at most one at a time. */
export class ImageWait {
  #abort = new AbortController();

  /** Ends what was begun before. @returns aborted by {@link cancel} */
  begin(): AbortSignal {
    this.cancel();
    this.#abort = new AbortController();
    return this.#abort.signal;
  }

  /** The image is not wanted any more. */
  cancel(): void {
    this.#abort.abort(new Error('the sandbox does not wait for its image any more'));
  }
}
