/*
 * Sockets in other network namespaces, as part of the addon. A socket belongs to the namespace that
 * it was made in, wherever it is used.
 *
 *   connectInNamespace(namespace, address, port) -> Promise<number>
 *     A non-blocking TCP socket, close-on-exec, that connects from this namespace (its path) to
 *     this IPv4 address. It may still be connecting, so that no thread waits for the peer: it can
 *     be written to once it is connected, and an error of the connection is that of the first read.
 *   listenInNamespace(namespace, address, port) -> Promise<number>
 *     A TCP socket, close-on-exec, that listens in this namespace at this IPv4 address. Port 0:
 *     any.
 */
#define _GNU_SOURCE
#include "namespaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "task.h"

enum { BACKLOG = 128 };

struct socket_task {
  struct task task;
  char *namespace;
  struct sockaddr_in address;
  int (*begin)(int fd, const struct sockaddr_in *address); /* 0, or -1 with errno. */
  int fd;
};

static int begin_to_listen(int fd, const struct sockaddr_in *address) {
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0) return -1;
  return listen(fd, BACKLOG);
}

static int begin_to_connect(int fd, const struct sockaddr_in *peer) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(fd, (const struct sockaddr *)peer, sizeof *peer) == 0) return 0;
  return errno == EINPROGRESS ? 0 : -1;
}

/* In a thread of its own, which is all that enters the namespace. */
static void *open_within(void *argument) {
  struct socket_task *work = argument;
  int namespace = open(work->namespace, O_RDONLY | O_CLOEXEC);
  bool is_within = namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0;
  if (is_within) work->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  bool is_begun = work->fd >= 0 && work->begin(work->fd, &work->address) == 0;
  work->task.error = is_begun ? 0 : errno;
  if (!is_begun && work->fd >= 0) close(work->fd);
  if (namespace >= 0) close(namespace);
  return NULL;
}

static int run_open(struct task *task) {
  pthread_t thread;
  ((struct socket_task *)task)->fd = -1;
  int error = pthread_create(&thread, NULL, open_within, task);
  if (error == 0) pthread_join(thread, NULL);
  return error != 0 ? error : task->error;
}

static napi_value result_socket(napi_env env, struct task *task) {
  napi_value value;
  napi_create_int32(env, ((struct socket_task *)task)->fd, &value);
  return value;
}

static void release(struct task *task) { free(((struct socket_task *)task)->namespace); }

static bool read_address(napi_env env, napi_value address, napi_value port,
                         struct sockaddr_in *into) {
  uint32_t number;
  char *text = copy_text(env, address);
  bool is_address = text != NULL && inet_pton(AF_INET, text, &into->sin_addr) == 1;
  free(text);
  if (!is_address || napi_get_value_uint32(env, port, &number) != napi_ok) return false;
  into->sin_family = AF_INET;
  into->sin_port = htons((uint16_t)number);
  return number <= UINT16_MAX;
}

static napi_value open_socket(napi_env env, napi_callback_info info, const char *call,
                              int (*begin)(int, const struct sockaddr_in *)) {
  napi_value args[3];
  struct socket_task *work = calloc(1, sizeof *work);
  if (work != NULL) {
    work->task = (struct task){.run = run_open, .result = result_socket, .release = release};
    work->begin = begin;
  }
  if (work == NULL || !read_arguments(env, info, 3, args) ||
      (work->namespace = copy_text(env, args[0])) == NULL ||
      !read_address(env, args[1], args[2], &work->address))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, call, NULL);
}

static napi_value js_connect_in_namespace(napi_env env, napi_callback_info info) {
  return open_socket(env, info, "connectInNamespace", begin_to_connect);
}

static napi_value js_listen_in_namespace(napi_env env, napi_callback_info info) {
  return open_socket(env, info, "listenInNamespace", begin_to_listen);
}

void define_namespace_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"connectInNamespace", NULL, js_connect_in_namespace, NULL, NULL, NULL, napi_enumerable,
       NULL},
      {"listenInNamespace", NULL, js_listen_in_namespace, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
