all: build/container-shim

# Static: it runs as long as its container, during which the host's libraries may be upgraded.
build/container-shim: $(call sources,container-shim) common/detached-tree.c \
		common/device-nodes.c common/disk-failure.c common/disk-loop.c common/shim-files.c \
		common/shim-log.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)
