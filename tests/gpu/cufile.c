/* cuFile by pread, for machines without a GPU: libcufile.so of the tests. It stands beside cuda.c, which knows the memory.
 *
 * TIERFS_FAKE_CUFILE: "closed" (its driver does not open), "type" (a file cannot be registered), "disk" (the same,
 * because its disk is unknown), "unknown" (the same, with a code that no header has), "memory" (memory cannot be
 * registered), "read" (the second read fails), "errno" (reads fail with EIO), "short" (reads give at most 1000003 bytes),
 * "indirect" (it reaches no disk directly).
 * TIERFS_FAKE_DURING: a command of the shell that runs before the first read.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct { int err, cu_err; } status;
typedef struct { int type; union { int fd; void *handle; } handle; const void *ops; } description;
static int opened, files, reads, begun;
static uintptr_t memory;
static size_t memory_len;

static void stop(const char *what) { fprintf(stderr, "fake cuFile: %s\n", what); abort(); }
static int fails(const char *how) { const char *set = getenv("TIERFS_FAKE_CUFILE"); return set && !strcmp(set, how); }
static status say(int code) { return (status){code, 0}; }
__attribute__((destructor)) static void left(void) { if (files || memory) stop("something was left behind"); }

status cuFileDriverOpen(void) { if (fails("closed")) return say(5010); opened++; return say(0); }
/* CUfileDrvProps_t: versions, two sizes, then the flags of what is reached directly. Bit 4 is for NVMe. */
status cuFileDriverGetProperties(void *properties) {
    struct { uint32_t versions[2]; size_t sizes[2]; uint32_t reached, controls; } *found = properties;
    if (!opened) stop("properties of a closed driver");
    found->reached = fails("indirect") ? 0 : 1 << 4;
    return say(0);
}
status cuFileHandleRegister(void **handle, description *d) {
    if (!opened || d->type != 1 || d->ops) stop("what is registered");
    if (!(fcntl(d->handle.fd, F_GETFL) & O_DIRECT)) return say(5020);
    if (fails("type")) return say(5018);
    if (fails("disk")) return say(5027);
    if (fails("unknown")) return (status){7000, 2};
    files++;
    *handle = (void *)(intptr_t)(d->handle.fd + 1);
    return say(0);
}
void cuFileHandleDeregister(void *handle) {
    if (fcntl((int)(intptr_t)handle - 1, F_GETFL) < 0) stop("a file was closed before cuFile let go of it");
    files--;
}
status cuFileBufRegister(const void *at, size_t len, int flags) {
    if (flags) stop("flags of memory");
    if (fails("memory")) return say(5036);
    memory = (uintptr_t)at;
    memory_len = len;
    return say(0);
}
status cuFileBufDeregister(const void *at) {
    if ((uintptr_t)at != memory) stop("memory that was not registered");
    memory = 0;
    return say(0);
}
ssize_t cuFileRead(void *handle, void *base, size_t size, off_t from, off_t to) {
    void *driver = dlopen("libcuda.so", RTLD_LAZY | RTLD_NOLOAD);
    int (*is_device)(uint64_t, uint64_t) = driver ? (int (*)(uint64_t, uint64_t))dlsym(driver, "fake_is_device") : 0;
    if (!is_device) stop("the driver of the tests is not loaded");
    if (memory && ((uintptr_t)base != memory || to + size > memory_len)) stop("a read past registered memory");
    if (!is_device((uintptr_t)base + to, size)) stop("a read outside of the device's memory");
    const char *during = getenv("TIERFS_FAKE_DURING");
    if (during && !begun++ && system(during)) stop("the command during a read");
    if (fails("read") && ++reads == 2) return -5010;
    if (fails("errno")) { errno = EIO; return -1; }
    if (fails("short") && size > 1000003) size = 1000003;
    dlclose(driver);
    int fd = (int)(intptr_t)handle - 1;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int plain = open(path, O_RDONLY); /* without O_DIRECT: any alignment */
    if (plain < 0) return -1;
    ssize_t done = pread(plain, (char *)base + to, size, from);
    close(plain);
    return done;
}
