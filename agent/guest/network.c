#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void put_address(struct sockaddr *into, uint32_t address) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {.s_addr = address}};
  memcpy(into, &in, sizeof in);
}

static struct ifreq request_for(const char *name) {
  struct ifreq request = {0};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return request;
}

static int bring_up(int fd, const char *name) {
  struct ifreq request = request_for(name);
  if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) return -1;
  request.ifr_flags |= IFF_UP;
  return ioctl(fd, SIOCSIFFLAGS, &request);
}

/* Sandbox networks are IPv4 only; with IPv6 on, each change of an interface would be announced. */
static void silence_ipv6(const char *name) {
  char path[96];
  snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return; /* The kernel has no IPv6. */
  if (write(fd, "1", 1) != 1) perror(path);
  close(fd);
}

void raise_interfaces(void) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct if_nameindex *all = if_nameindex();
  for (struct if_nameindex *each = all; fd >= 0 && each != NULL && each->if_name != NULL; each++) {
    if (strcmp(each->if_name, "lo") != 0) silence_ipv6(each->if_name);
    bring_up(fd, each->if_name);
  }
  if (all != NULL) if_freenameindex(all);
  if (fd >= 0) close(fd);
}

static int set_address(int fd, const struct network_settings *settings) {
  uint32_t bits = settings->prefix_bits;
  uint32_t mask = bits == 0 ? 0 : htonl(~(uint32_t)0 << (32 - bits));
  struct ifreq request = request_for(settings->interface);
  put_address(&request.ifr_addr, settings->address);
  if (ioctl(fd, SIOCSIFADDR, &request) != 0) return -1;
  put_address(&request.ifr_netmask, mask);
  return ioctl(fd, SIOCSIFNETMASK, &request);
}

static int set_mtu(int fd, const struct network_settings *settings) {
  struct ifreq request = request_for(settings->interface);
  request.ifr_mtu = settings->mtu_bytes;
  return settings->mtu_bytes == 0 ? 0 : ioctl(fd, SIOCSIFMTU, &request);
}

static int set_route(int fd, const struct network_settings *settings) {
  if (settings->gateway == 0) return 0;
  struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
  put_address(&route.rt_dst, 0);
  put_address(&route.rt_genmask, 0);
  put_address(&route.rt_gateway, settings->gateway);
  return ioctl(fd, SIOCADDRT, &route) == 0 || errno == EEXIST ? 0 : -1;
}

/* The last settings applied. After a pause the same ones come again, and nothing is touched. */
static struct network_settings applied;

static bool is_applied(const struct network_settings *settings) {
  return strcmp(applied.interface, settings->interface) == 0 &&
         applied.address == settings->address && applied.gateway == settings->gateway &&
         applied.prefix_bits == settings->prefix_bits && applied.mtu_bytes == settings->mtu_bytes;
}

int configure_network(const struct network_settings *settings) {
  if (is_applied(settings)) return 0;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  bool done = bring_up(fd, "lo") == 0 && set_mtu(fd, settings) == 0 &&
              set_address(fd, settings) == 0 && bring_up(fd, settings->interface) == 0 &&
              set_route(fd, settings) == 0;
  int error = done ? 0 : errno;
  close(fd);
  if (done) applied = *settings;
  return error;
}
