// SPDX-License-Identifier: GPL-2.0
/*
 * RENAMEs that are being carried out. Until the kernel has moved the name, too, it is unknown which
 * inode the daemon has under it.
 *
 * The VFS moves a name after the file system has. Here it is moved before the RENAME counts as
 * ended. The two names of an exchange are the exception: a daemon that counts st_ino as nodeids,
 * and dies between the two steps, may have its nodeids mistaken for each other.
 */
#include "transport_i.h"

#include <linux/stringhash.h>

/**
 * struct efuse_move - a RENAME that is being carried out
 * @list: node in the list of the connection
 * @dir: nodeids of the directories
 * @name: the old and the new name
 */
struct efuse_move {
	struct list_head list;
	u64 dir[2];
	struct name_snapshot name[2];
};

static atomic64_t *efuse_moves_begun(struct efuse_conn *ec, u64 dir, const char *name, u32 len)
{
	u32 hash = full_name_hash(ec, name, len) ^ hash_64(dir, 32);

	return &ec->recovery.moves.begun[hash % EFUSE_NR_MOVES];
}

static bool efuse_move_is(const struct efuse_move *move, int i, u64 dir, const char *name,
			  u32 len)
{
	const struct qstr *its = &move->name[i].name;

	return move->dir[i] == dir && its->len == len && !memcmp(its->name, name, len);
}

/* Does a RENAME in flight move a name? */
static bool efuse_moving(struct efuse_conn *ec, u64 dir, const char *name, u32 len)
{
	struct efuse_move *move;
	bool moving = false;

	spin_lock(&ec->recovery.moves.lock);
	list_for_each_entry(move, &ec->recovery.moves.list, list)
		moving |= efuse_move_is(move, 0, dir, name, len) ||
			  efuse_move_is(move, 1, dir, name, len);
	spin_unlock(&ec->recovery.moves.lock);
	return moving;
}

/**
 * efuse_moves_wait - wait until no RENAME moves a name
 * @ec: connection
 * @dir: nodeid of the directory
 * @name: the name
 * @len: its length, bytes
 * @begun: set to what efuse_moves_since() needs
 *
 * A RENAME that waits here for the names above its directories does not wait for itself: a
 * directory cannot be moved to a name below itself.
 *
 * Context: process context, may sleep.
 * Return: 0; -EINTR if the caller is being killed
 */
int efuse_moves_wait(struct efuse_conn *ec, u64 dir, const char *name, u32 len, u64 *begun)
{
	*begun = atomic64_read(efuse_moves_begun(ec, dir, name, len));
	/* A RENAME that began before that is seen in the list; one that begins later changes it. */
	smp_rmb();
	if (wait_event_killable(ec->recovery.moves.waitq, !efuse_moving(ec, dir, name, len)))
		return -EINTR;
	return 0;
}

/**
 * efuse_moves_try - note that no RENAME is in flight
 * @ec: connection
 * @begun: set to the number of RENAMEs that have begun
 *
 * Return: false if one is in flight
 */
bool efuse_moves_try(struct efuse_conn *ec, u64 *begun)
{
	bool none;

	spin_lock(&ec->recovery.moves.lock);
	none = list_empty(&ec->recovery.moves.list);
	*begun = ec->recovery.moves.all;
	spin_unlock(&ec->recovery.moves.lock);
	return none;
}

/**
 * efuse_moves_since - has a RENAME begun to move a name?
 * @ec: connection
 * @dir: nodeid of the directory
 * @name: the name
 * @len: its length, bytes
 * @begun: what efuse_moves_wait() has set
 *
 * Return: true if so, or if that cannot be told
 */
bool efuse_moves_since(struct efuse_conn *ec, u64 dir, const char *name, u32 len, u64 begun)
{
	/* What the caller has read of the names was read before. */
	smp_rmb();
	return atomic64_read(efuse_moves_begun(ec, dir, name, len)) != begun;
}

/* Adds a RENAME, whose directories are locked by the caller, to the list. */
static void efuse_move_begin(struct efuse_conn *ec, struct efuse_move *move)
{
	int i;

	spin_lock(&ec->recovery.moves.lock);
	list_add(&move->list, &ec->recovery.moves.list);
	ec->recovery.moves.all++;
	for (i = 0; i < 2; i++)
		atomic64_inc(efuse_moves_begun(ec, move->dir[i], move->name[i].name.name,
					       move->name[i].name.len));
	spin_unlock(&ec->recovery.moves.lock);
}

static void efuse_move_end(struct efuse_conn *ec, struct efuse_move *move)
{
	spin_lock(&ec->recovery.moves.lock);
	list_del(&move->list);
	spin_unlock(&ec->recovery.moves.lock);
	wake_up_all(&ec->recovery.moves.waitq);
}

/*
 * Carries a RENAME out, and moves the kernel's name. The VFS moves it once more, which changes
 * nothing then. It alone can exchange two names.
 *
 * After a RENAME whose outcome is unknown, the kernel does not know which inodes the names have,
 * and a daemon that counts st_ino as nodeids does not tell.
 */
static int efuse_rename_now(struct mnt_idmap *idmap, struct inode *olddir, struct dentry *oldent,
			    struct inode *newdir, struct dentry *newent, unsigned int flags)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(olddir));
	int err = fuse_rename2(idmap, olddir, oldent, newdir, newent, flags);

	if (!err && !(flags & RENAME_EXCHANGE))
		d_move(oldent, newent);
	if (err == -EIO && efuse_translated(ec)) {
		d_invalidate(oldent);
		d_invalidate(newent);
	}
	return err;
}

/**
 * efuse_rename - the inode operation rename() of directories
 * @idmap: the mount's idmap
 * @olddir: directory of the old name
 * @oldent: the old name
 * @newdir: directory of the new name
 * @newent: the new name
 * @flags: RENAME_*
 *
 * Context: process context, with the locks of the directories held.
 * Return: 0 or a negative errno
 */
int efuse_rename(struct mnt_idmap *idmap, struct inode *olddir, struct dentry *oldent,
		 struct inode *newdir, struct dentry *newent, unsigned int flags)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(olddir));
	struct efuse_move move;
	int err;

	if (!ec || !efuse_translates(ec))
		return fuse_rename2(idmap, olddir, oldent, newdir, newent, flags);
	move.dir[0] = get_node_id(olddir);
	move.dir[1] = get_node_id(newdir);
	take_dentry_name_snapshot(&move.name[0], oldent);
	take_dentry_name_snapshot(&move.name[1], newent);
	efuse_move_begin(ec, &move);
	err = efuse_rename_now(idmap, olddir, oldent, newdir, newent, flags);
	efuse_move_end(ec, &move);
	release_dentry_name_snapshot(&move.name[0]);
	release_dentry_name_snapshot(&move.name[1]);
	return err;
}

/* Prepares the list of a new connection. */
void efuse_moves_add(struct efuse_conn *ec)
{
	spin_lock_init(&ec->recovery.moves.lock);
	INIT_LIST_HEAD(&ec->recovery.moves.list);
	init_waitqueue_head(&ec->recovery.moves.waitq);
}
