/**
 * Headers with which every answer of the object API is sent. A page among the objects of a disk
 * must not run as one of ours: presigned links open in browsers, and in a local stack control and
 * agents share a host name.
 */
export const SAFETY_HEADERS = {
  'content-security-policy': "default-src 'none'; sandbox",
  'x-content-type-options': 'nosniff',
} as const;
