/* A CUDA driver of host memory, for machines without a GPU: libcuda.so of the tests.
 *
 * Copies and programs of a stream run only when the stream, or an event behind them, is waited for. So whoever writes to
 * a buffer too early, or frees it, has wrong bytes at the end. What is called with wrong arguments, or left behind,
 * ends the process with a line on standard error; nothing here is taken from the code under test.
 *
 * TIERFS_FAKE_NO_DEVICE: cuInit says that there is none. TIERFS_FAKE_NO_PROGRAM: no module can be loaded.
 * TIERFS_FAKE_WRONG_AT: the comparison finds the byte at this place of the first stretch changed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 256
typedef struct { uintptr_t at; size_t len; int kind; } area; /* 1 device, 2 pinned */
static area areas[MAX];
static int contexts, retained, streams, modules, events;
static int CONTEXT, STREAM, MODULE, FUNCTION;

typedef struct { int kind; uint64_t a, b, n, c; } work; /* 1 to device, 2 from device, 3 compare, 4 set */
static work queue[4096];
static int queued, done;
typedef struct { int until; } event;

static void stop(const char *what) { fprintf(stderr, "fake CUDA: %s\n", what); abort(); }

static area *find(uint64_t at, uint64_t len, int kind) {
    for (int i = 0; i < MAX; i++)
        if (areas[i].kind == kind && at >= areas[i].at && at + len <= areas[i].at + areas[i].len)
            return &areas[i];
    return 0;
}

int fake_is_device(uint64_t at, uint64_t len) { return find(at, len, 1) != 0; }
int fake_has_context(void) { return contexts > 0; }

static void ran(work *w) {
    if (w->kind == 1) {
        if (!find(w->a, w->n, 1) || !find(w->b, w->n, 2)) stop("a copy to the device outside of memory");
        memcpy((void *)w->a, (void *)w->b, w->n);
    } else if (w->kind == 2) {
        if (!find(w->a, w->n, 2) || !find(w->b, w->n, 1)) stop("a copy from the device outside of memory");
        memcpy((void *)w->a, (void *)w->b, w->n);
    } else if (w->kind == 3) {
        if (!find(w->a, w->n, 1) || !find(w->b, w->n, 1) || !find(w->c, 8, 1)) stop("a comparison outside of memory");
        const char *wrong = getenv("TIERFS_FAKE_WRONG_AT");
        for (uint64_t i = 0; i < w->n; i++)
            *(uint64_t *)w->c += ((uint8_t *)w->a)[i] != ((uint8_t *)w->b)[i] || (wrong && i == strtoull(wrong, 0, 10));
    } else {
        if (!find(w->a, w->n, 1)) stop("a fill outside of memory");
        memset((void *)w->a, (int)w->b, w->n);
    }
}

static void run_to(int until) { for (; done < until; done++) ran(&queue[done % 4096]); }
static void put(int kind, uint64_t a, uint64_t b, uint64_t n, uint64_t c) {
    if (queued - done >= 4096) run_to(queued);
    queue[queued++ % 4096] = (work){kind, a, b, n, c};
}

static int take(int kind, uint64_t at, uint64_t len) {
    for (int i = 0; i < MAX; i++)
        if (!areas[i].kind) { areas[i] = (area){at, len, kind}; return 0; }
    stop("too much memory");
    return 1;
}
static void drop(int kind, uint64_t at) {
    for (int i = 0; i < MAX; i++)
        if (areas[i].kind == kind && areas[i].at == at) {
            if (queued != done) stop("memory freed while work is under way");
            memset((void *)at, 0xdd, areas[i].len);
            areas[i].kind = 0;
            return;
        }
    stop("memory freed that is not there");
}

__attribute__((destructor)) static void left(void) {
    if (contexts || retained || streams || modules || events) stop("something was left behind");
    for (int i = 0; i < MAX; i++) if (areas[i].kind) stop("memory was left behind");
}

static int inside(void) { if (!contexts) stop("no context is current"); return 0; }

int cuInit(unsigned flags) { if (flags) stop("flags of cuInit"); return getenv("TIERFS_FAKE_NO_DEVICE") ? 100 : 0; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { if (n) stop("a device that is not there"); *d = 0; return 0; }
int cuDeviceGetName(char *name, int len, int d) { (void)d; snprintf(name, len, "A fake GPU"); return 0; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 218 ? "CUDA_ERROR_INVALID_PTX" : 0;
    return *name ? 0 : 1;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; retained++; *c = &CONTEXT; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; retained--; return 0; }
int cuCtxPushCurrent_v2(void *c) { if (c != &CONTEXT) stop("a context that is not there"); contexts++; return 0; }
int cuCtxPopCurrent_v2(void **c) { inside(); contexts--; *c = &CONTEXT; return 0; }
int cuMemAlloc_v2(uint64_t *at, size_t n) {
    inside();
    if (!n) return 1;
    void *memory = 0;
    if (posix_memalign(&memory, 4096, n)) return 2;
    memset(memory, 0xaa, n);
    *at = (uint64_t)(uintptr_t)memory;
    return take(1, *at, n);
}
int cuMemFree_v2(uint64_t at) { inside(); drop(1, at); free((void *)(uintptr_t)at); return 0; }
int cuMemHostAlloc(void **at, size_t n, unsigned flags) {
    inside();
    if (!n || flags) return 1;
    *at = malloc(n);
    memset(*at, 0xbb, n);
    return take(2, (uintptr_t)*at, n);
}
int cuMemFreeHost(void *at) { inside(); drop(2, (uintptr_t)at); free(at); return 0; }
int cuStreamCreate(void **s, unsigned flags) { inside(); if (flags != 1) stop("flags of a stream"); streams++; *s = &STREAM; return 0; }
int cuStreamDestroy_v2(void *s) { inside(); if (s != &STREAM) stop("a stream"); if (queued != done) stop("a stream ended with work under way"); streams--; return 0; }
int cuStreamSynchronize(void *s) { inside(); if (s != &STREAM) stop("a stream"); run_to(queued); return 0; }
int cuEventCreate(void **e, unsigned flags) { inside(); if (flags != 3) stop("flags of an event"); events++; *e = calloc(1, sizeof(event)); return 0; }
int cuEventRecord(void *e, void *s) { inside(); if (s != &STREAM) stop("a stream"); ((event *)e)->until = queued; return 0; }
int cuEventSynchronize(void *e) { inside(); if (((event *)e)->until > done) run_to(((event *)e)->until); return 0; }
int cuEventDestroy_v2(void *e) { inside(); events--; free(e); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) { inside(); if (s != &STREAM) stop("a stream"); put(1, to, (uintptr_t)from, n, 0); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) { inside(); if (s != &STREAM) stop("a stream"); put(2, (uintptr_t)to, from, n, 0); return 0; }
int cuMemsetD8Async(uint64_t at, unsigned char v, size_t n, void *s) { inside(); if (s != &STREAM) stop("a stream"); put(4, at, v, n, 0); return 0; }
int cuModuleLoadData(void **m, const void *image) {
    inside();
    if (getenv("TIERFS_FAKE_NO_PROGRAM")) return 218;
    if (!strstr(image, ".entry count_differences(")) stop("another program");
    modules++;
    *m = &MODULE;
    return 0;
}
int cuModuleGetFunction(void **f, void *m, const char *name) {
    if (m != &MODULE || strcmp(name, "count_differences")) return 500;
    *f = &FUNCTION;
    return 0;
}
int cuModuleUnload(void *m) { inside(); if (m != &MODULE) stop("a module"); if (queued != done) stop("a module unloaded while it runs"); modules--; return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *s, void **p, void **extra) {
    inside();
    if (f != &FUNCTION || s != &STREAM || extra || shared) stop("a launch");
    if (!gx || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1) stop("the shape of a launch");
    put(3, *(uint64_t *)p[0], *(uint64_t *)p[1], *(uint64_t *)p[2], *(uint64_t *)p[3]);
    return 0;
}
int cuPointerGetAttribute(void *value, int which, uint64_t at) {
    area *a = find(at, 1, 1);
    if (!a) return 1;
    switch (which) {
    case 1: *(void **)value = 0; return 0;
    case 2: *(unsigned *)value = 2; return 0;
    case 9: *(int *)value = 0; return 0;
    case 11: *(uint64_t *)value = a->at; return 0;
    case 12: *(size_t *)value = a->len; return 0;
    default: return 1;
    }
}
