# The keeper of a virtual machine's NFS server, and the library that the server loads first.
all: build/serve-disks build/nfs-preload.so

# Static: it runs as long as its sandbox.
build/serve-disks: serve-disks/serve-disks.c common/beneath.c common/detached-tree.c \
		common/disk-failure.c common/disk-trees.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)

build/nfs-preload.so: serve-disks/seal-handles.c serve-disks/siphash.c serve-disks/wal-locks.c \
		$(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -fPIC -shared -pthread -o $@ $(compiled)
