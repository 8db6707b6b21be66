# Loaded into the agent: system calls and digests that Node lacks.
NODE_API = ../../node_modules/node-api-headers/include
all: build/native.node

build/native.node: $(call sources,addon) common/beneath.c common/detached-tree.c \
		common/device-nodes.c common/lock.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -fPIC -shared -pthread -isystem $(NODE_API) -o $@ $(compiled)
