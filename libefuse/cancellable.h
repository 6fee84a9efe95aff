/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A system call in which a thread may be cancelled that cannot be otherwise. */
#ifndef EFUSE_CANCELLABLE_H
#define EFUSE_CANCELLABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * glibc's pthread_cancel(3) looks whether the thread lets itself be cancelled, and then sends a
 * signal, whose handler does not look again. A thread that has disabled its cancellation between the
 * two is cancelled wherever it is by then: in a handler, or amid its own end.
 */

/**
 * cancellable - make a system call of three arguments, in which the thread may be cancelled
 * @number: of the call, such as SYS_read
 * @fd: its first argument
 * @second: its second
 * @third: its third
 * @ending: not 0 from before the thread is cancelled; NULL: nobody cancels it
 *
 * The call and nothing around it: a sanitizer's ioctl(3) or read(3) takes locks, which a thread that
 * ended in it would keep. For the same reason nothing in here is instrumented.
 *
 * A thread that is about to be cancelled waits for that in here. Else who cancels it finds its
 * cancellation disabled: that both change @ending puts them in order.
 *
 * Context: a thread that has disabled its cancellation, and made it asynchronous.
 * Return: what the call returns; errno says more of -1
 */
__attribute__((no_sanitize_thread)) static inline long
cancellable(long number, int fd, uintptr_t second, uintptr_t third, atomic_int *ending)
{
	/* Found when the library was loaded: looking it up takes a lock. */
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
