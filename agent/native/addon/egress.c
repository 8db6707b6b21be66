/*
 * System calls for the egress proxy, as part of the addon.
 *
 *   listenTransparent(port) -> fd
 *     A listening socket that takes connections to any address which the rules of this network
 *     namespace redirect to the port: such a connection has as its local address where the client
 *     connected to. IP_TRANSPARENT of ip(7); needs CAP_NET_ADMIN. Close-on-exec.
 *   forbidDumps() -> undefined
 *     From now on this process leaves no core dump, and only root can trace it or read its memory.
 *     PR_SET_DUMPABLE of prctl(2).
 */
#define _GNU_SOURCE
#include "egress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "task.h"

enum { BACKLOG = 1024 };

/* -1 with errno when it fails. */
static int listen_transparent(uint16_t port) {
  const int on = 1;
  const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof on) == 0 &&
      bind(fd, (const struct sockaddr *)&any, sizeof any) == 0 && listen(fd, BACKLOG) == 0)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

static napi_value js_listen_transparent(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  uint32_t port;
  if (!read_arguments(env, info, 1, args) ||
      napi_get_value_uint32(env, args[0], &port) != napi_ok || port > UINT16_MAX)
    return refuse_task(env, NULL);
  int fd = listen_transparent((uint16_t)port);
  if (fd < 0) {
    napi_throw(env, make_error(env, errno, "listenTransparent"));
    return NULL;
  }
  napi_create_int32(env, fd, &result);
  return result;
}

static napi_value js_forbid_dumps(napi_env env, napi_callback_info info) {
  napi_value nothing;
  (void)info;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
    napi_throw(env, make_error(env, errno, "prctl"));
    return NULL;
  }
  napi_get_undefined(env, &nothing);
  return nothing;
}

void define_egress_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"listenTransparent", NULL, js_listen_transparent, NULL, NULL, NULL, napi_enumerable, NULL},
      {"forbidDumps", NULL, js_forbid_dumps, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
