import Type from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { type Method, type Route, route, type Tag } from '../http/route.ts';

const ImagePath = Type.Object({
  image_id: Type.String({ description: 'Id of the image.', examples: ['0'.repeat(64)] }),
});

/** An endpoint of the specification that answers 501 until it is built. */
const notBuilt = (
  method: Method,
  path: string,
  operationId: string,
  tag: Tag,
  options: Partial<Pick<Route, 'plainUnauthorized' | 'params'>> = {},
): Route =>
  route({
    method,
    path,
    operationId,
    summary: 'Not built yet',
    description: 'Answers 501.',
    tag,
    replies: {},
    errors: ['not_implemented'],
    ...options,
    handle: () =>
      Promise.reject(
        new AppError('not_implemented', `${method.toUpperCase()} ${path} is not built yet`),
      ),
  });

const images = 'Sandbox images';

const plain = { plainUnauthorized: true } as const;

export const notBuiltRoutes: readonly Route[] = [
  notBuilt('post', '/api/images', 'buildImage', images, plain),
  notBuilt('get', '/api/images/{image_id}', 'getImage', images, { ...plain, params: ImagePath }),
];
