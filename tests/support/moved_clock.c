/* Preloaded by tests/test_faults_clock.py: the wall clock of one process is off by the seconds that a file says; no other clock is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long long offset(void) {
    long long seconds = 0;
    const char *name = getenv("MOVED_CLOCK");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (file) {
        if (fscanf(file, "%lld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    (void)zone;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (at) *at = found.tv_sec;
    return found.tv_sec;
}
