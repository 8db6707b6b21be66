# The search program, and the engines that it starts.
RG = /usr/bin/rg
GREP = /usr/bin/grep
LOCALE = /usr/lib/locale/C.utf8
all: $(TOOLS)/search $(TOOLS)/rg $(TOOLS)/grep

$(TOOLS)/search: $(call sources,search) $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -pthread -o $@ $(compiled)

# With the libraries of this host: the container's image need not have any. Last of all rg itself,
# so that it is there only with all that it needs.
$(TOOLS)/rg: $(RG) | $(TOOLS)/lib
	ldd $(RG) | awk '$$2 == "=>" { print $$3 }' | xargs -r cp -Lt $(TOOLS)/lib
	cp -L "$$(ldd $(RG) | awk '$$1 ~ /\/ld-linux/ { print $$1 }')" $(TOOLS)/ld.so
	cp -L $(RG) $@

# The same, and the locale in which it reads patterns and text.
$(TOOLS)/grep: $(GREP) | $(TOOLS)/rg
	ldd $(GREP) | awk '$$2 == "=>" { print $$3 }' | xargs -r cp -Lt $(TOOLS)/lib
	mkdir -p $(TOOLS)/locale
	cp -rLT $(LOCALE) $(TOOLS)/locale/C.UTF-8
	cp -L $(GREP) $@
