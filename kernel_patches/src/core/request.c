// SPDX-License-Identifier: GPL-2.0
/* Access to a request's arguments by their meaning; each opcode has them in other places. */
#include "core_i.h"

/* The first input argument, or NULL if it is shorter than @size bytes. */
const void *efuse_req_in(const struct fuse_args *args, size_t size)
{
	if (!args->in_numargs || args->in_args[0].size < size)
		return NULL;
	return args->in_args[0].value;
}

/**
 * efuse_io_complete - fill in the arguments of a READ or WRITE that eFuse makes
 * @io: the request; all of it is zero, except the opcode and what the caller has set
 * @pos: offset in the file, bytes
 * @len: length, bytes
 */
void efuse_io_complete(struct efuse_io *io, u64 pos, size_t len)
{
	struct fuse_args *args = &io->ap.args;

	args->out_numargs = 1;
	if (args->opcode == FUSE_READ) {
		io->read.offset = pos;
		io->read.size = len;
		args->in_numargs = 1;
		args->in_args[0].size = sizeof(io->read);
		args->in_args[0].value = &io->read;
		args->out_args[0].size = len;
		args->out_argvar = true;
		return;
	}
	io->write.offset = pos;
	io->write.size = len;
	args->in_numargs = 2;
	args->in_args[0].size = sizeof(io->write);
	args->in_args[0].value = &io->write;
	args->in_args[1].size = len;
	args->out_args[0].size = sizeof(io->written);
	args->out_args[0].value = &io->written;
}

/**
 * efuse_lookup_args - fill in the arguments of a LOOKUP that eFuse makes
 * @args: the request; all of it is zero
 * @dir: nodeid of the directory
 * @name: the name, which ends with a NUL
 * @len: length of the name without its NUL, bytes
 * @entry: room for the answer
 */
void efuse_lookup_args(struct fuse_args *args, u64 dir, const char *name, u32 len,
		       struct fuse_entry_out *entry)
{
	args->opcode = FUSE_LOOKUP;
	args->nodeid = dir;
	efuse_lookup_name(args, name, len);
	args->out_numargs = 1;
	args->out_args[0].size = sizeof(*entry);
	args->out_args[0].value = entry;
}

/**
 * efuse_room_restore - give a request the room for its answer that it had when it was sent
 * @args: the request, whose answer could not be copied
 *
 * An answer of a variable length has made the room as small as the answer.
 */
void efuse_room_restore(struct fuse_args *args)
{
	struct fuse_args_pages *ap = container_of(args, struct fuse_args_pages, args);
	u32 room = efuse_arg_size(args);

	if (args->opcode == FUSE_READLINK && args->out_pages)
		room = ap->descs[0].length;
	if (args->out_argvar && args->out_numargs && room)
		args->out_args[args->out_numargs - 1].size = room;
}

/* The indices of the input arguments that are the first and second name; -1: no such name. */
static void efuse_name_places(u32 opcode, int place[2])
{
	place[0] = -1;
	place[1] = -1;
	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_REMOVEXATTR:
		place[0] = 0;
		break;
	case FUSE_SYMLINK:
		place[0] = 0;
		place[1] = 1;
		break;
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_CREATE:
	case FUSE_TMPFILE:
	case FUSE_LINK:
	case FUSE_SETXATTR:
	case FUSE_GETXATTR:
		place[0] = 1;
		break;
	case FUSE_RENAME:
	case FUSE_RENAME2:
		place[0] = 1;
		place[1] = 2;
		break;
	}
}

/**
 * efuse_req_name_at - get a name from a request's arguments
 * @args: the request
 * @index: 0 for the first name, 1 for the second (new name of RENAME, target of SYMLINK)
 * @len: set to the length of the name without its NUL; 0 if there is no name
 *
 * Return: the name, which may lack a NUL; or NULL if the request has no such name.
 */
const char *efuse_req_name_at(const struct fuse_args *args, u32 index, u32 *len)
{
	int place[2];

	*len = 0;
	if (index > 1)
		return NULL;
	efuse_name_places(args->opcode, place);
	/* Linux 7.3 puts an empty argument before names that would be the first argument. */
	if (!place[0] && args->in_numargs && !args->in_args[0].size) {
		place[0]++;
		place[1] += place[1] > 0;
	}
	if (place[index] < 0 || place[index] >= args->in_numargs ||
	    !args->in_args[place[index]].size)
		return NULL;
	/* There, the NUL of a LOOKUP's name is an argument of its own. */
	*len = args->in_args[place[index]].size - (args->opcode != FUSE_LOOKUP || !place[0]);
	return args->in_args[place[index]].value;
}

/* The place of a number in the first input argument of an opcode. */
struct efuse_field {
	u8 whole;	/* least size of the argument, bytes; 0: the opcode has no such number */
	u8 offset;
	u8 size;	/* of the number: 4 or 8 bytes */
};

#define EFUSE_FIELD(type, member) {					\
	.whole = sizeof(struct type),					\
	.offset = offsetof(struct type, member),			\
	.size = sizeof_field(struct type, member),			\
}

/* In older versions of the protocol the structure may end after the member. */
#define EFUSE_FIELD_COMPAT(type, member) {				\
	.whole = offsetofend(struct type, member),			\
	.offset = offsetof(struct type, member),			\
	.size = sizeof_field(struct type, member),			\
}

static const struct efuse_field efuse_flags_fields[EFUSE_NR_OPCODES] = {
	[FUSE_OPEN]		= EFUSE_FIELD(fuse_open_in, flags),
	[FUSE_OPENDIR]		= EFUSE_FIELD(fuse_open_in, flags),
	[FUSE_CREATE]		= EFUSE_FIELD(fuse_create_in, flags),
	[FUSE_TMPFILE]		= EFUSE_FIELD(fuse_create_in, flags),
	[FUSE_ACCESS]		= EFUSE_FIELD(fuse_access_in, mask),
	[FUSE_SETATTR]		= EFUSE_FIELD(fuse_setattr_in, valid),
	[FUSE_RENAME2]		= EFUSE_FIELD(fuse_rename2_in, flags),
	[FUSE_RELEASE]		= EFUSE_FIELD(fuse_release_in, flags),
	[FUSE_RELEASEDIR]	= EFUSE_FIELD(fuse_release_in, flags),
	[FUSE_READ]		= EFUSE_FIELD(fuse_read_in, flags),
	[FUSE_READDIR]		= EFUSE_FIELD(fuse_read_in, flags),
	[FUSE_READDIRPLUS]	= EFUSE_FIELD(fuse_read_in, flags),
	[FUSE_WRITE]		= EFUSE_FIELD(fuse_write_in, flags),
};

static const struct efuse_field efuse_fh_fields[EFUSE_NR_OPCODES] = {
	[FUSE_READ]		= EFUSE_FIELD_COMPAT(fuse_read_in, fh),
	[FUSE_READDIR]		= EFUSE_FIELD_COMPAT(fuse_read_in, fh),
	[FUSE_READDIRPLUS]	= EFUSE_FIELD_COMPAT(fuse_read_in, fh),
	[FUSE_WRITE]		= EFUSE_FIELD_COMPAT(fuse_write_in, fh),
	[FUSE_RELEASE]		= EFUSE_FIELD_COMPAT(fuse_release_in, fh),
	[FUSE_RELEASEDIR]	= EFUSE_FIELD_COMPAT(fuse_release_in, fh),
	[FUSE_FLUSH]		= EFUSE_FIELD_COMPAT(fuse_flush_in, fh),
	[FUSE_FSYNC]		= EFUSE_FIELD_COMPAT(fuse_fsync_in, fh),
	[FUSE_FSYNCDIR]		= EFUSE_FIELD_COMPAT(fuse_fsync_in, fh),
	[FUSE_LSEEK]		= EFUSE_FIELD_COMPAT(fuse_lseek_in, fh),
	[FUSE_FALLOCATE]	= EFUSE_FIELD_COMPAT(fuse_fallocate_in, fh),
	[FUSE_IOCTL]		= EFUSE_FIELD_COMPAT(fuse_ioctl_in, fh),
	[FUSE_POLL]		= EFUSE_FIELD_COMPAT(fuse_poll_in, fh),
	[FUSE_GETLK]		= EFUSE_FIELD_COMPAT(fuse_lk_in, fh),
	[FUSE_SETLK]		= EFUSE_FIELD_COMPAT(fuse_lk_in, fh),
	[FUSE_SETLKW]		= EFUSE_FIELD_COMPAT(fuse_lk_in, fh),
	[FUSE_COPY_FILE_RANGE]	= EFUSE_FIELD_COMPAT(fuse_copy_file_range_in, fh_in),
	[EFUSE_COPY_FILE_RANGE_64] = EFUSE_FIELD_COMPAT(fuse_copy_file_range_in, fh_in),
};

static const struct efuse_field efuse_offset_fields[EFUSE_NR_OPCODES] = {
	[FUSE_READ]		= EFUSE_FIELD(fuse_read_in, offset),
	[FUSE_READDIR]		= EFUSE_FIELD(fuse_read_in, offset),
	[FUSE_READDIRPLUS]	= EFUSE_FIELD(fuse_read_in, offset),
	[FUSE_WRITE]		= EFUSE_FIELD_COMPAT(fuse_write_in, offset),
	[FUSE_FALLOCATE]	= EFUSE_FIELD(fuse_fallocate_in, offset),
	[FUSE_LSEEK]		= EFUSE_FIELD(fuse_lseek_in, offset),
};

static const struct efuse_field efuse_size_fields[EFUSE_NR_OPCODES] = {
	[FUSE_READ]		= EFUSE_FIELD(fuse_read_in, size),
	[FUSE_READDIR]		= EFUSE_FIELD(fuse_read_in, size),
	[FUSE_READDIRPLUS]	= EFUSE_FIELD(fuse_read_in, size),
	[FUSE_WRITE]		= EFUSE_FIELD_COMPAT(fuse_write_in, size),
	[FUSE_GETXATTR]		= EFUSE_FIELD(fuse_getxattr_in, size),
	[FUSE_LISTXATTR]	= EFUSE_FIELD(fuse_getxattr_in, size),
	[FUSE_SETXATTR]		= EFUSE_FIELD_COMPAT(fuse_setxattr_in, size),
	[FUSE_FALLOCATE]	= EFUSE_FIELD(fuse_fallocate_in, length),
	[FUSE_COPY_FILE_RANGE]	= EFUSE_FIELD(fuse_copy_file_range_in, len),
	[EFUSE_COPY_FILE_RANGE_64] = EFUSE_FIELD(fuse_copy_file_range_in, len),
};

static const struct efuse_field efuse_newdir_fields[EFUSE_NR_OPCODES] = {
	[FUSE_RENAME]		= EFUSE_FIELD_COMPAT(fuse_rename_in, newdir),
	[FUSE_RENAME2]		= EFUSE_FIELD_COMPAT(fuse_rename2_in, newdir),
	[FUSE_LINK]		= EFUSE_FIELD_COMPAT(fuse_link_in, oldnodeid),
};

/* A number of the request, as @fields places it; 0 if the request has none. */
static u64 efuse_arg(const struct fuse_args *args, const struct efuse_field *fields)
{
	const struct efuse_field *field;
	const void *in;

	if (args->opcode >= EFUSE_NR_OPCODES)
		return 0;
	field = &fields[args->opcode];
	in = field->whole ? efuse_req_in(args, field->whole) : NULL;
	if (!in)
		return 0;
	in += field->offset;
	return field->size == sizeof(u64) ? *(const u64 *)in : *(const u32 *)in;
}

/* Where a number of 64 bits is in the request; NULL if it has none. */
static u64 *efuse_place(struct fuse_args *args, const struct efuse_field *fields)
{
	const struct efuse_field *field;
	const void *in;

	if (args->opcode >= EFUSE_NR_OPCODES)
		return NULL;
	field = &fields[args->opcode];
	in = field->whole ? efuse_req_in(args, field->whole) : NULL;
	return in ? (u64 *)(in + field->offset) : NULL;
}

u32 efuse_arg_flags(const struct fuse_args *args)
{
	return efuse_arg(args, efuse_flags_fields);
}

u64 efuse_arg_fh(const struct fuse_args *args)
{
	return efuse_arg(args, efuse_fh_fields);
}

u64 efuse_arg_offset(const struct fuse_args *args)
{
	return efuse_arg(args, efuse_offset_fields);
}

u64 efuse_arg_size(const struct fuse_args *args)
{
	return efuse_arg(args, efuse_size_fields);
}

u64 efuse_arg_newdir(const struct fuse_args *args)
{
	return efuse_arg(args, efuse_newdir_fields);
}

/* Where the handle is, also if it is optional; NULL if the request has none. */
u64 *efuse_place_fh(struct fuse_args *args)
{
	struct fuse_setattr_in *setattr;
	struct fuse_getattr_in *getattr;
	struct fuse_statx_in *statx;

	switch (args->opcode) {
	case FUSE_SETATTR:
		setattr = (void *)efuse_req_in(args, sizeof(*setattr));
		return setattr && setattr->valid & FATTR_FH ? &setattr->fh : NULL;
	case FUSE_GETATTR:
		getattr = (void *)efuse_req_in(args, sizeof(*getattr));
		return getattr && getattr->getattr_flags & FUSE_GETATTR_FH ? &getattr->fh : NULL;
	case FUSE_STATX:
		statx = (void *)efuse_req_in(args, sizeof(*statx));
		return statx && statx->getattr_flags & FUSE_GETATTR_FH ? &statx->fh : NULL;
	default:
		return efuse_place(args, efuse_fh_fields);
	}
}

static struct fuse_copy_file_range_in *efuse_copy_in(struct fuse_args *args)
{
	if (args->opcode != FUSE_COPY_FILE_RANGE && args->opcode != EFUSE_COPY_FILE_RANGE_64)
		return NULL;
	return (void *)efuse_req_in(args, sizeof(struct fuse_copy_file_range_in));
}

/* Where the nodeid of another inode is (RENAME, LINK, COPY_FILE_RANGE); NULL if there is none. */
u64 *efuse_place_other(struct fuse_args *args)
{
	struct fuse_copy_file_range_in *copy = efuse_copy_in(args);

	return copy ? &copy->nodeid_out : efuse_place(args, efuse_newdir_fields);
}

/* Where the handle of that inode is; NULL if there is none. */
u64 *efuse_place_other_fh(struct fuse_args *args)
{
	struct fuse_copy_file_range_in *copy = efuse_copy_in(args);

	return copy ? &copy->fh_out : NULL;
}

/**
 * efuse_out_data - get the buffer for the answer of a READLINK, READDIR or READDIRPLUS
 * @args: the request
 * @room: set to the size of the buffer in bytes
 *
 * Return: the buffer, or NULL if it is not contiguous.
 */
void *efuse_out_data(struct fuse_args *args, size_t *room)
{
	struct fuse_args_pages *ap = container_of(args, struct fuse_args_pages, args);

	*room = 0;
	return args->out_pages ? efuse_pages_piece(ap, room) : NULL;
}

/**
 * efuse_dirents_start - begin to iterate over the entries of a READDIRPLUS
 * @req: the READDIRPLUS, with its answer
 * @left: set to the size of all entries in bytes
 *
 * Return: position for efuse_dirents_next()
 */
char *efuse_dirents_start(const struct efuse_req *req, size_t *left)
{
	size_t room;
	char *at = efuse_out_data(req->args, &room);

	*left = at && req->ret > 0 ? min_t(size_t, req->ret, room) : 0;
	return at;
}

/**
 * efuse_dirents_next - get the next entry of a READDIRPLUS
 * @at: position of the entry; advanced to the next one
 * @left: bytes from the position to the end; decremented by the size of the entry
 *
 * Return: the entry, which lies completely within the answer; or NULL at the end
 */
struct fuse_direntplus *efuse_dirents_next(char **at, size_t *left)
{
	struct fuse_direntplus *plus = (struct fuse_direntplus *)*at;

	if (*left < FUSE_NAME_OFFSET_DIRENTPLUS || FUSE_DIRENTPLUS_SIZE(plus) > *left)
		return NULL;
	*at += FUSE_DIRENTPLUS_SIZE(plus);
	*left -= FUSE_DIRENTPLUS_SIZE(plus);
	return plus;
}

/* Is the request a WRITE of dirty pages by write-back? */
bool efuse_is_write_back(const struct fuse_args *args)
{
	const struct fuse_write_in *in = args->in_args[0].value;

	return args->opcode == FUSE_WRITE && in->write_flags & FUSE_WRITE_CACHE;
}

/* The entry in the answer, or NULL if the opcode has none. */
struct fuse_entry_out *efuse_out_entry(const struct fuse_args *args)
{
	switch (args->opcode) {
	case FUSE_LOOKUP:
	case FUSE_CREATE:
	case FUSE_TMPFILE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		if (args->out_args[0].size == sizeof(struct fuse_entry_out))
			return args->out_args[0].value;
	}
	return NULL;
}

/* The attributes in the answer of a GETATTR or SETATTR, or NULL for other opcodes. */
struct fuse_attr_out *efuse_out_attr(const struct fuse_args *args)
{
	switch (args->opcode) {
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		if (args->out_args[0].size == sizeof(struct fuse_attr_out))
			return args->out_args[0].value;
	}
	return NULL;
}

/* The answer of a STATX, or NULL for other opcodes. */
struct fuse_statx_out *efuse_out_statx(const struct fuse_args *args)
{
	if (args->opcode == FUSE_STATX &&
	    args->out_args[0].size == sizeof(struct fuse_statx_out))
		return args->out_args[0].value;
	return NULL;
}

/* The attributes in the answer of a STATX, as GETATTR has them. */
struct fuse_attr efuse_statx_attr(const struct fuse_statx *stat)
{
	return (struct fuse_attr) {
		.ino = stat->ino,
		.size = stat->size,
		.blocks = stat->blocks,
		.atime = stat->atime.tv_sec,
		.atimensec = stat->atime.tv_nsec,
		.mtime = stat->mtime.tv_sec,
		.mtimensec = stat->mtime.tv_nsec,
		.ctime = stat->ctime.tv_sec,
		.ctimensec = stat->ctime.tv_nsec,
		.mode = stat->mode,
		.nlink = stat->nlink,
		.uid = stat->uid,
		.gid = stat->gid,
		.rdev = new_encode_dev(MKDEV(stat->rdev_major, stat->rdev_minor)),
		.blksize = stat->blksize,
	};
}

/* Does the handle @fh mean that any other open of the inode is as good? See EFUSE_FH_OWN. */
bool efuse_handle_is_any(const struct fuse_args *args, u64 fh)
{
	return !fh || fh == args->nodeid || (fh & EFUSE_FH_OWN && !(fh & EFUSE_FH_KEPT));
}

/**
 * efuse_opens_later - may the daemon be asked to open a file when a request needs the handle?
 * @ec: connection
 * @args: an OPEN or OPENDIR
 *
 * A daemon with `lazy_open` that has granted it once would do so again. In other modes than
 * exclusive, each OPEN may also tell the daemon to look at what others have changed. An OPEN for
 * writing may have an effect. A daemon that keeps locks has to hear of each FLUSH, which ends those
 * that its process has by other opens. A successor of one with `stable_nodeids` may get the nodeids
 * and handles of the first daemon, so those are not replaced by numbers.
 */
bool efuse_opens_later(const struct efuse_conn *ec, const struct fuse_args *args)
{
	return READ_ONCE(ec->lazy_open) && READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE &&
	       (efuse_arg_flags(args) & (O_ACCMODE | O_TRUNC)) == O_RDONLY &&
	       ec->fc->no_lock && ec->fc->no_flock && efuse_translates(ec) &&
	       !READ_ONCE(ec->stable_nodeids);
}

/* The handle and open flags in the answer, or NULL if the opcode does not open anything. */
struct fuse_open_out *efuse_out_open(const struct fuse_args *args)
{
	switch (args->opcode) {
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return args->out_args[0].value;
	case FUSE_CREATE:
	case FUSE_TMPFILE:
		return args->out_args[1].value;
	}
	return NULL;
}
