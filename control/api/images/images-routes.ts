import { success } from '../../../shared/schemas/common.ts';
import { BuildImage, Image, ImagePath } from '../../../shared/schemas/image.ts';
import { presentImage } from './present-image.ts';
import { route } from '../../http/route.ts';
import { buildImage, findImage } from './images.ts';

const tag = 'Sandbox images';

const buildImageRoute = route({
  method: 'post',
  path: '/api/images',
  operationId: 'buildImage',
  scope: 'sandbox',
  event: 'image.requested',
  summary: 'Build an image that sandboxes can be created from',
  description:
    'Answered at once, while the image is being built; a build of the same image that is under way is joined. A reference to a tag is looked up and built again each time, one to a digest only until it was built.',
  tag,
  body: BuildImage,
  plainUnauthorized: true,
  replies: { 202: success(Image) },
  errors: ['no_capacity', 'host_full', 'not_enabled', 'timeout'],
  async handle({ deps, caller, body, requestId, note }) {
    const record = await buildImage(deps, caller.accountId, body, { requestId });
    note({ imageId: record.id });
    return { status: 202, data: presentImage(record) };
  },
});

const getImage = route({
  method: 'get',
  path: '/api/images/{image_id}',
  operationId: 'getImage',
  scope: 'read',
  summary: 'Show an image, and how far its build is',
  description: 'A private image is there for its own account only.',
  tag,
  params: ImagePath,
  plainUnauthorized: true,
  replies: { 200: success(Image) },
  errors: ['not_found', 'not_enabled', 'timeout'],
  async handle({ deps, caller, params }) {
    const record = await findImage(deps, caller.accountId, params.image_id);
    return { status: 200, data: presentImage(record) };
  },
});

export const imageRoutes = [buildImageRoute, getImage];
