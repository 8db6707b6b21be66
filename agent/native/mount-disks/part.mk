all: build/mount-disks

build/mount-disks: $(call sources,mount-disks) common/beneath.c common/detached-tree.c \
		common/disk-failure.c common/disk-trees.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)
