#define _GNU_SOURCE
#include "connections.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  NFS_PORT = 2049,
  ANSWER_BYTES = 16 * 1024,
  ROUNDS_MAX = 8, /* While the kernel lists connections, those that end may hide others. */
  NETWORKS_MAX = 64,
  PROCESSES_MAX = 4096,
  FIRST_INTERFACES = 2, /* The loopback and the card. */
};

#define HAS_ENDED (1U << TCP_CLOSE | 1U << TCP_TIME_WAIT | 1U << TCP_LISTEN)

struct diag_request {
  struct nlmsghdr header;
  struct inet_diag_req_v2 body;
};

static struct diag_request request_of(uint16_t type, uint16_t flags, uint8_t family) {
  return (struct diag_request){
      .header = {.nlmsg_len = sizeof(struct diag_request),
                 .nlmsg_type = type,
                 .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags)},
      .body = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~HAS_ENDED},
  };
}

/*
 * Two sockets, as the kernel goes on with a list whenever one part of it is read: one to list, one
 * to end what is found. Each first use of anything takes milliseconds in a guest that was restored
 * under emulation, so no more than needed is used. Answers are there when a request was sent.
 */
struct sockets {
  int list, ender; /* -1 until it is needed. */
};

static int open_diag(int *fd) {
  if (*fd < 0) *fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  return *fd;
}

/* The connections to end: those from one address, or to one. 0 stands for none. */
struct match {
  uint32_t own, gateway;
};

/* A socket of IPv6 may have a connection over IPv4. 0 if it has none. */
static uint32_t address_of(uint8_t family, const uint32_t *address) {
  if (family == AF_INET) return address[0];
  bool is_mapped = address[0] == 0 && address[1] == 0 && address[2] == htonl(0xffff);
  return is_mapped ? address[3] : 0;
}

static bool matches(const struct inet_diag_msg *found, const struct match *match) {
  uint32_t near = address_of(found->idiag_family, found->id.idiag_src);
  uint32_t far = address_of(found->idiag_family, found->id.idiag_dst);
  if (far == 0 || far == match->own) return false;
  if (far == match->gateway && ntohs(found->id.idiag_dport) == NFS_PORT) return false;
  return far == match->gateway || near == match->own;
}

static bool end_connection(struct sockets *sockets, const struct inet_diag_msg *found) {
  char answer[512];
  int fd = open_diag(&sockets->ender);
  struct diag_request request = request_of(SOCK_DESTROY, NLM_F_ACK, found->idiag_family);
  struct nlmsgerr error;
  request.body.id = found->id;
  if (fd < 0 || send(fd, &request, sizeof request, 0) < 0) return false;
  ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
  if (got < (ssize_t)(sizeof(struct nlmsghdr) + sizeof error)) return false;
  memcpy(&error, answer + sizeof(struct nlmsghdr), sizeof error);
  return error.error == 0;
}

/* Reads one part of a list. True while there is more; adds how many connections were ended. */
static bool end_listed(struct sockets *sockets, const struct match *match, int *ended) {
  static _Alignas(struct nlmsghdr) char part[ANSWER_BYTES];
  ssize_t got = recv(sockets->list, part, sizeof part, MSG_DONTWAIT);
  if (got <= 0) return false;
  size_t left = (size_t)got;
  for (struct nlmsghdr *each = (void *)part; NLMSG_OK(each, left); each = NLMSG_NEXT(each, left)) {
    if (each->nlmsg_type != SOCK_DIAG_BY_FAMILY) return false; /* The end, or an error. */
    if (each->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg))) return false;
    const struct inet_diag_msg *found = NLMSG_DATA(each);
    if (matches(found, match) && end_connection(sockets, found)) (*ended)++;
  }
  return true;
}

static int end_family(struct sockets *sockets, uint8_t family, const struct match *match) {
  int ended = 0, fd = open_diag(&sockets->list);
  struct diag_request request = request_of(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family);
  if (fd >= 0 && send(fd, &request, sizeof request, 0) > 0)
    while (end_listed(sockets, match, &ended)) continue;
  return ended;
}

/* The sockets are of the network in which they were opened. */
static void end_in_network(const struct match *match) {
  struct sockets sockets = {-1, -1};
  for (int round = 0, ended = 1; round < ROUNDS_MAX && ended > 0; round++)
    ended = end_family(&sockets, AF_INET, match) + end_family(&sockets, AF_INET6, match);
  if (sockets.list >= 0) close(sockets.list);
  if (sockets.ender >= 0) close(sockets.ender);
}

/*
 * Without a further interface, which has an address as a bridge does, nothing gets from the first
 * network of this guest to another.
 */
static bool has_only_first_interfaces(void) {
  struct ifreq found[FIRST_INTERFACES + 1];
  struct ifconf all = {.ifc_len = sizeof found, .ifc_req = found};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool only = fd < 0 || ioctl(fd, SIOCGIFCONF, &all) != 0 ||
              all.ifc_len <= (int)(FIRST_INTERFACES * sizeof *found);
  if (fd >= 0) close(fd);
  return only;
}

static bool is_new(ino_t network, ino_t *known, int *count) {
  for (int index = 0; index < *count; index++)
    if (known[index] == network) return false;
  if (*count == NETWORKS_MAX) return false;
  known[(*count)++] = network;
  return true;
}

static void end_in_network_of(const char *process, const struct match *match, ino_t *known,
                              int *count) {
  char path[300];
  struct stat network;
  snprintf(path, sizeof path, "/proc/%s/ns/net", process);
  if (stat(path, &network) != 0 || !is_new(network.st_ino, known, count)) return;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (setns(fd, CLONE_NEWNET) == 0) end_in_network(match);
  close(fd);
}

static void end_in_other_networks(const struct match *match) {
  ino_t known[NETWORKS_MAX];
  int count = 0, left = PROCESSES_MAX;
  struct stat own;
  int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  DIR *all = home < 0 || fstat(home, &own) != 0 ? NULL : opendir("/proc");
  if (all != NULL) known[count++] = own.st_ino;
  for (struct dirent *each; all != NULL && left > 0 && (each = readdir(all)) != NULL;) {
    if (!isdigit((unsigned char)each->d_name[0])) continue;
    left--;
    end_in_network_of(each->d_name, match, known, &count);
  }
  if (all != NULL) closedir(all);
  if (count > 1) setns(home, CLONE_NEWNET);
  if (home >= 0) close(home);
}

void end_connections(uint32_t own, uint32_t gateway) {
  const struct match here = {own, gateway}, elsewhere = {0, gateway};
  end_in_network(&here);
  if (!has_only_first_interfaces()) end_in_other_networks(&elsewhere);
}
