// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * An object has a place for the address of each function that it calls in another object. Its
 * dynamic section tells which place belongs to which function. A function that is replaced there is
 * replaced for that object only, whatever else was loaded, and in any order.
 *
 * The library plthook does the same, but no package of Debian has it.
 */
#define _GNU_SOURCE
#include "got.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if __ELF_NATIVE_CLASS == 64
#define SYMBOL(info)	ELF64_R_SYM(info)
#else
#define SYMBOL(info)	ELF32_R_SYM(info)
#endif

/**
 * struct search - a search for the places of a function in an object
 * @got: filled in
 * @base: address at which the object was loaded
 * @function: name of the function
 * @symbols: symbol table of the object
 * @names: string table of the object
 * @full: not 0 if there were more than GOT_PLACES places
 */
struct search {
	struct got *got;
	ElfW(Addr) base;
	const char *function;
	const ElfW(Sym) *symbols;
	const char *names;
	int full;
};

/* Some loaders add the base to the addresses in a dynamic section, others do not. */
static ElfW(Addr) address(const struct search *search, ElfW(Addr) value)
{
	return value < search->base ? search->base + value : value;
}

static void found(struct search *search, void **place)
{
	struct got *got = search->got;

	if (got->used == GOT_PLACES) {
		search->full = 1;
		return;
	}
	got->places[got->used] = place;
	got->before[got->used++] = *place;
}

/* Searches a table of relocations. Both kinds of entries begin with the same members. */
static void search_table(struct search *search, ElfW(Addr) table, size_t size, size_t step)
{
	size_t at;

	for (at = 0; step && at + step <= size; at += step) {
		const ElfW(Rel) *one = (const void *)(address(search, table) + at);
		const ElfW(Sym) *symbol = &search->symbols[SYMBOL(one->r_info)];

		/* The type does not matter: a relocation for a function stores its address. */
		if (SYMBOL(one->r_info) && !strcmp(search->names + symbol->st_name, search->function))
			found(search, (void **)(search->base + one->r_offset));
	}
}

static void search_dynamic(struct search *search, const ElfW(Dyn) *dynamic)
{
	ElfW(Addr) rel = 0, rela = 0, plt = 0;
	size_t rel_size = 0, rela_size = 0, plt_size = 0;
	int plt_kind = DT_RELA;

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		ElfW(Addr) value = dynamic->d_un.d_ptr;

		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			search->symbols = (const void *)address(search, value);
			break;
		case DT_STRTAB:
			search->names = (const char *)address(search, value);
			break;
		case DT_REL:
			rel = value;
			break;
		case DT_RELSZ:
			rel_size = value;
			break;
		case DT_RELA:
			rela = value;
			break;
		case DT_RELASZ:
			rela_size = value;
			break;
		case DT_JMPREL:
			plt = value;
			break;
		case DT_PLTRELSZ:
			plt_size = value;
			break;
		case DT_PLTREL:
			plt_kind = (int)value;
			break;
		}
	}
	if (!search->symbols || !search->names)
		return;
	search_table(search, rel, rel_size, sizeof(ElfW(Rel)));
	search_table(search, rela, rela_size, sizeof(ElfW(Rela)));
	search_table(search, plt, plt_size,
		     plt_kind == DT_REL ? sizeof(ElfW(Rel)) : sizeof(ElfW(Rela)));
}

static int search_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const ElfW(Dyn) *dynamic = NULL;
	unsigned int i;

	(void)size;
	if (info->dlpi_addr != search->base)
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t start = search->base + part->p_vaddr;

		if (part->p_type == PT_DYNAMIC)
			dynamic = (const void *)start;
		if (part->p_type == PT_GNU_RELRO) {
			search->got->protected = (char *)(start & -page);
			search->got->protected_end = (char *)((start + part->p_memsz) & -page);
		}
	}
	if (dynamic)
		search_dynamic(search, dynamic);
	return 1;
}

static int protect(const struct got *got, int how)
{
	size_t size = (size_t)(got->protected_end - got->protected);

	return size && mprotect(got->protected, size, how) ? -errno : 0;
}

static void put(const struct got *got, unsigned int i, void *value)
{
	__atomic_store_n(got->places[i], value, __ATOMIC_RELEASE);
}

/**
 * got_replace - make an object call another function
 * @got: filled in, for got_restore()
 * @object: path from which the object was loaded
 * @function: name of a function that the object calls in another object
 * @other: function to call instead
 *
 * Return: 0 or a negative errno: -ENOENT if the object is not loaded or does not call the function,
 *         -E2BIG if it has too many places for it
 */
int got_replace(struct got *got, const char *object, const char *function, void *other)
{
	struct search search = { .got = got, .function = function };
	void *handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
	const struct link_map *map;
	unsigned int i;
	int err;

	memset(got, 0, sizeof(*got));
	if (!handle)
		return -ENOENT;
	if (!dlinfo(handle, RTLD_DI_LINKMAP, &map)) {
		search.base = map->l_addr;
		dl_iterate_phdr(search_object, &search);
	}
	dlclose(handle);
	err = search.full ? -E2BIG : got->used ? protect(got, PROT_READ | PROT_WRITE) : -ENOENT;
	if (err) {
		got->used = 0;
		return err;
	}
	for (i = 0; i < got->used; i++)
		put(got, i, other);
	protect(got, PROT_READ);
	return 0;
}

/**
 * got_restore - undo got_replace()
 * @got: filled in by got_replace(); the object must still be loaded
 */
void got_restore(struct got *got)
{
	if (!got->used || protect(got, PROT_READ | PROT_WRITE))
		return;
	while (got->used--)
		put(got, got->used, got->before[got->used]);
	got->used = 0;
	protect(got, PROT_READ);
}
