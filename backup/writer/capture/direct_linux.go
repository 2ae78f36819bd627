package capture

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// directPiece is how many bytes are written to the disk at a time. After each, whoever copies waits for a processor, among all that
// serve clients, and so does the transaction; what is much larger has etcd's own flushes wait.
const directPiece = 16 << 20

// direct copies a section of one file to another, from the page cache to the disk. It is unsupported, and nothing is copied,
// where the file system cannot do that.
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
	defer func() { _ = unix.Munmap(mapped) }() // it can only fail for what is not mapped
	restore, err := pastTheCache(int(p.file.Fd()))
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
		err = errors.ErrUnsupported // it wants another alignment
	}
	return copied, err
}

// pastTheCache has a file written to the disk itself, until restore is called.
func pastTheCache(file int) (restore func(), err error) {
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return func() { _, _ = unix.FcntlInt(uintptr(file), unix.F_SETFL, flags) }, nil // what follows may be closed only
}
