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
 * efuse_deferred_prepare - create the connection's workqueue before a WRITE needs it
 * @ec: connection
 *
 * Context: process context, may sleep.
 * Return: 0 or -ENOMEM
 */
int efuse_deferred_prepare(struct efuse_conn *ec)
{
	struct workqueue_struct *queue;

	if (READ_ONCE(ec->deferred_queue))
		return 0;
	queue = alloc_workqueue("efuse/%u", WQ_MEM_RECLAIM | WQ_UNBOUND, 0, ec->id);
	if (!queue)
		return -ENOMEM;
	/* Pairs with efuse_defer(). */
	if (cmpxchg(&ec->deferred_queue, NULL, queue))
		destroy_workqueue(queue);
	return 0;
}

/*
 * Waits for the workers of an unmounted connection. Its requests are answered, but a worker may
 * still be returning.
 */
void efuse_deferred_settle(struct efuse_conn *ec)
{
	if (ec->deferred_queue)
		flush_workqueue(ec->deferred_queue);
}

void efuse_deferred_free(struct efuse_conn *ec)
{
	if (ec->deferred_queue)
		destroy_workqueue(ec->deferred_queue);
}
