/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Makes a system call a cancellation point, and nothing but the call. */
#ifndef EFUSE_CANCELLABLE_H
#define EFUSE_CANCELLABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * glibc's pthread_cancel(3) checks whether the thread has cancellation enabled, and then sends a
 * signal, whose handler does not check again. A thread that disables its cancellation between the
 * check and the signal is cancelled wherever it is at that time: in a handler, or in the middle of
 * its own end.
 */

/**
 * cancellable - make a system call of three arguments in which the thread may be cancelled
 * @number: number of the call, such as SYS_read
 * @fd: first argument
 * @second: second argument
 * @third: third argument
 * @ending: set to another value than 0 before the thread is cancelled; NULL: the thread is never
 *         cancelled
 *
 * Only the system call itself is a cancellation point. A sanitizer's ioctl(3) or read(3) takes
 * locks, which a thread that is cancelled inside would keep. Nothing in here is instrumented for
 * the same reason.
 *
 * If the thread is about to be cancelled after the call, it waits for that in here. Otherwise the
 * canceller sees its cancellation disabled: the atomic changes of @ending by both order them.
 *
 * Context: a thread that has disabled its cancellation, and made it asynchronous.
 * Return: result of the system call; -1 sets errno
 */
__attribute__((no_sanitize_thread)) static inline long
cancellable(long number, int fd, uintptr_t second, uintptr_t third, atomic_int *ending)
{
	/* Resolved when the library was loaded, because resolving takes a lock. */
	static long (*const volatile call)(long number, ...) = syscall;
	int before, ignored;
	long result;

	if (!ending)
		return syscall(number, fd, second, third);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
	result = call(number, fd, second, third);
	pthread_setcancelstate(before, &ignored);
	if (atomic_fetch_or(ending, 0)) {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &ignored);
		for (;;)
			call(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	}
	return result;
}

#endif
