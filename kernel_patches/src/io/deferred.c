// SPDX-License-Identifier: GPL-2.0
/*
 * The workqueue of a connection for write-back WRITEs; background.c puts them into it.
 *
 * Each connection that needs workers has a workqueue with its own rescuer: a WRITE into a file of
 * another eFuse mount may wait for the workers of that mount.
 */
#include "io_i.h"

#include <linux/workqueue.h>

/**
 * efuse_later_prepare - create the connection's workqueue before a WRITE needs it
 * @ec: connection
 *
 * Context: process context, may sleep.
 * Return: 0 or -ENOMEM
 */
int efuse_later_prepare(struct efuse_conn *ec)
{
	struct workqueue_struct *queue;

	if (READ_ONCE(ec->later_queue))
		return 0;
	queue = alloc_workqueue("efuse/%u", WQ_MEM_RECLAIM | WQ_UNBOUND, 0, ec->id);
	if (!queue)
		return -ENOMEM;
	/* Pairs with efuse_later(). */
	if (cmpxchg(&ec->later_queue, NULL, queue))
		destroy_workqueue(queue);
	return 0;
}

/*
 * Waits for the workers of an unmounted connection. Its requests are answered, but a worker may
 * still be returning.
 */
void efuse_later_settle(struct efuse_conn *ec)
{
	if (ec->later_queue)
		flush_workqueue(ec->later_queue);
}

void efuse_later_free(struct efuse_conn *ec)
{
	if (ec->later_queue)
		destroy_workqueue(ec->later_queue);
}
