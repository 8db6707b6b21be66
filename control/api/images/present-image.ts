import type { ImageRecord } from '../../../shared/directory/images.ts';
import { parseImageReference, repositoryOf } from '../../../shared/image-reference.ts';
import type { Image } from '../../../shared/schemas/image.ts';

/** An image as the API shows it (docs/images.md). */
export function presentImage(record: ImageRecord): Image {
  const { id, source, accountId, status, digest, failure, progress } = record;
  const repository = repositoryOf(parseImageReference(source));
  return {
    image_id: id,
    source,
    private: accountId !== undefined,
    status,
    ...(digest === undefined ? {} : { digest, canonical_source: `${repository}@${digest}` }),
    ...(failure === undefined
      ? {}
      : { failure_reason: failure.reason, failure_message: failure.message }),
    ...(progress === undefined
      ? {}
      : {
          progress: {
            step: progress.step,
            bytes_done: progress.bytesDone,
            bytes_total: progress.bytesTotal,
          },
        }),
    created_at: record.createdAt,
    updated_at: record.updatedAt,
  };
}
