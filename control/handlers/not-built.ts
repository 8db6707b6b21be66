import Type from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { type Method, type Route, route } from '../http/route.ts';

const AnyPath = Type.Object({});

/** An endpoint of the specification that answers 501 until it is built. */
const notBuilt = (
  method: Method,
  path: string,
  operationId: string,
  tag: string,
  options: Partial<Pick<Route, 'plainUnauthorized'>> = {},
): Route =>
  route({
    method,
    path,
    operationId,
    summary: 'Not built yet',
    tag,
    params: AnyPath,
    replies: {},
    errors: [501],
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
  notBuilt('get', '/api/images/{image_id}', 'getImage', images, plain),
];
