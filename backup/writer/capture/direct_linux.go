package capture

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// directPiece is the number of bytes written to the disk at a time. After each piece, the copy may have to wait for a
// CPU, so smaller pieces would keep the transaction open for longer. Larger pieces would delay etcd's flushes.
const directPiece = 16 << 20

// direct copies a section of a file from the page cache to the disk. If the file system does not support direct I/O,
// direct returns errors.ErrUnsupported without copying anything.
func (p *paced) direct(from *io.LimitedReader) (copied int64, err error) {
	section, ok := from.R.(*io.SectionReader)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	outer, begin, _ := section.Outer()
	source, ok := outer.(*os.File)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	end := begin + from.N
	mapped, err := unix.Mmap(int(source.Fd()), 0, int(end), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	defer func() { _ = unix.Munmap(mapped) }() // fails only if the memory is not mapped
	restore, err := openDirect(int(p.file.Fd()))
	if err != nil {
		return 0, err
	}
	defer restore()
	for at := begin; at < end && err == nil; {
		var n int
		n, err = p.Write(mapped[at:min(end, at+directPiece)])
		at, copied = at+int64(n), copied+int64(n)
	}
	if copied == 0 && errors.Is(err, unix.EINVAL) {
		err = errors.ErrUnsupported // the file system requires a different alignment
	}
	return copied, err
}

// openDirect enables direct I/O for a file descriptor until restore is called.
func openDirect(file int) (restore func(), err error) {
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return func() { _, _ = unix.FcntlInt(uintptr(file), unix.F_SETFL, flags) }, nil // ignore errors; the file is closed next
}
