/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A system call in which a thread may be cancelled that cannot be otherwise. */
#ifndef EFUSE_CANCELLABLE_H
#define EFUSE_CANCELLABLE_H

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

/**
 * cancellable - make a system call of three arguments, in which the thread may be cancelled
 * @number: of the call, such as SYS_read
 * @fd: its first argument
 * @second: its second
 * @third: its third
 *
 * The call and nothing around it: a sanitizer's ioctl(3) or read(3) takes locks, which a thread that
 * ended in it would keep.
 *
 * Context: a thread that has disabled its cancellation, and made it asynchronous. In any other
 *          the call is as it is otherwise.
 * Return: what the call returns; errno says more of -1
 */
static inline long cancellable(long number, int fd, uintptr_t second, uintptr_t third)
{
	int before, ignored;
	long result;

	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
	result = syscall(number, fd, second, third);
	pthread_setcancelstate(before, &ignored);
	return result;
}

#endif
