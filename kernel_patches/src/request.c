// SPDX-License-Identifier: GPL-2.0
/* A request's arguments by their meaning, whatever place the opcode gives them. */
#include "efuse_i.h"

/* The first input argument, if it is at least @size bytes long. */
const void *efuse_req_in(const struct fuse_args *args, size_t size)
{
	if (!args->in_numargs || args->in_args[0].size < size)
		return NULL;
	return args->in_args[0].value;
}

/* Which input arguments are names, first and second; -1 for none. */
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
 * efuse_req_name_at - a name among a request's arguments
 * @args: the request
 * @index: 0 for the first name, 1 for the second (RENAME's new one, SYMLINK's target)
 * @len: its length without the NUL; 0 where there is no name
 *
 * Return: the name, or NULL where the request has none.
 */
const char *efuse_req_name_at(const struct fuse_args *args, u32 index, u32 *len)
{
	int place[2];

	*len = 0;
	if (index > 1)
		return NULL;
	efuse_name_places(args->opcode, place);
	if (place[index] < 0 || place[index] >= args->in_numargs ||
	    !args->in_args[place[index]].size)
		return NULL;
	*len = args->in_args[place[index]].size - 1;
	return args->in_args[place[index]].value;
}

u32 efuse_arg_flags(const struct fuse_args *args)
{
	const void *in;

	switch (args->opcode) {
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		in = efuse_req_in(args, sizeof(struct fuse_open_in));
		return in ? ((struct fuse_open_in *)in)->flags : 0;
	case FUSE_CREATE:
	case FUSE_TMPFILE:
		in = efuse_req_in(args, sizeof(struct fuse_create_in));
		return in ? ((struct fuse_create_in *)in)->flags : 0;
	case FUSE_ACCESS:
		in = efuse_req_in(args, sizeof(struct fuse_access_in));
		return in ? ((struct fuse_access_in *)in)->mask : 0;
	case FUSE_SETATTR:
		in = efuse_req_in(args, sizeof(struct fuse_setattr_in));
		return in ? ((struct fuse_setattr_in *)in)->valid : 0;
	case FUSE_RENAME2:
		in = efuse_req_in(args, sizeof(struct fuse_rename2_in));
		return in ? ((struct fuse_rename2_in *)in)->flags : 0;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		in = efuse_req_in(args, sizeof(struct fuse_release_in));
		return in ? ((struct fuse_release_in *)in)->flags : 0;
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		in = efuse_req_in(args, sizeof(struct fuse_read_in));
		return in ? ((struct fuse_read_in *)in)->flags : 0;
	case FUSE_WRITE:
		in = efuse_req_in(args, sizeof(struct fuse_write_in));
		return in ? ((struct fuse_write_in *)in)->flags : 0;
	}
	return 0;
}

u64 efuse_arg_fh(const struct fuse_args *args)
{
	const void *in;

	switch (args->opcode) {
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_WRITE:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
	case FUSE_LSEEK:
	case FUSE_FALLOCATE:
	case FUSE_IOCTL:
	case FUSE_POLL:
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
	case FUSE_COPY_FILE_RANGE:
		/* The handle is the first member of all their structures. */
		in = efuse_req_in(args, sizeof(u64));
		return in ? *(const u64 *)in : 0;
	}
	return 0;
}

u64 efuse_arg_offset(const struct fuse_args *args)
{
	const void *in;

	switch (args->opcode) {
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		in = efuse_req_in(args, sizeof(struct fuse_read_in));
		return in ? ((struct fuse_read_in *)in)->offset : 0;
	case FUSE_WRITE:
		in = efuse_req_in(args, FUSE_COMPAT_WRITE_IN_SIZE);
		return in ? ((struct fuse_write_in *)in)->offset : 0;
	case FUSE_FALLOCATE:
		in = efuse_req_in(args, sizeof(struct fuse_fallocate_in));
		return in ? ((struct fuse_fallocate_in *)in)->offset : 0;
	case FUSE_LSEEK:
		in = efuse_req_in(args, sizeof(struct fuse_lseek_in));
		return in ? ((struct fuse_lseek_in *)in)->offset : 0;
	}
	return 0;
}

u64 efuse_arg_size(const struct fuse_args *args)
{
	const void *in;

	switch (args->opcode) {
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		in = efuse_req_in(args, sizeof(struct fuse_read_in));
		return in ? ((struct fuse_read_in *)in)->size : 0;
	case FUSE_WRITE:
		in = efuse_req_in(args, FUSE_COMPAT_WRITE_IN_SIZE);
		return in ? ((struct fuse_write_in *)in)->size : 0;
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		in = efuse_req_in(args, sizeof(struct fuse_getxattr_in));
		return in ? ((struct fuse_getxattr_in *)in)->size : 0;
	case FUSE_SETXATTR:
		in = efuse_req_in(args, FUSE_COMPAT_SETXATTR_IN_SIZE);
		return in ? ((struct fuse_setxattr_in *)in)->size : 0;
	case FUSE_FALLOCATE:
		in = efuse_req_in(args, sizeof(struct fuse_fallocate_in));
		return in ? ((struct fuse_fallocate_in *)in)->length : 0;
	case FUSE_COPY_FILE_RANGE:
		in = efuse_req_in(args, sizeof(struct fuse_copy_file_range_in));
		return in ? ((struct fuse_copy_file_range_in *)in)->len : 0;
	}
	return 0;
}

u64 efuse_arg_newdir(const struct fuse_args *args)
{
	const void *in;

	switch (args->opcode) {
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
		/* newdir and oldnodeid are the first member of their structures. */
		in = efuse_req_in(args, sizeof(u64));
		return in ? *(const u64 *)in : 0;
	}
	return 0;
}

/* The one page that READLINK and READDIR* are answered into. */
struct page *efuse_out_page(struct fuse_args *args)
{
	struct fuse_args_pages *ap = container_of(args, struct fuse_args_pages, args);

	if (!args->out_pages)
		return NULL;
	if (ap->uses_folios)
		return ap->num_folios == 1 && folio_size(ap->folios[0]) == PAGE_SIZE ?
			&ap->folios[0]->page : NULL;
	return ap->num_pages == 1 ? ap->pages[0] : NULL;
}

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
