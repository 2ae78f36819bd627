package bootstrap

import (
	"errors"

	"etcd-wrapper/internal/smallfile"
)

// ErrCertificates says that certificate files cannot be used at this moment: one is missing, cut off, of another pair, or
// its mount hangs. While certificates are being replaced that passes, so it is a reason to try again, and none to throw a
// verdict of the sidecar away. Both the check of etcd's configuration and the wrapper's own server wrap it.
var ErrCertificates = errors.New("certificate files cannot be used now")

// maxCertificates bounds what is read of one certificate or key file, in bytes. The bundles of whole operating systems
// have a quarter of it.
const maxCertificates = 1 << 20

// ReadCertificates reads a file of PEM blocks in at most 1 s; see smallfile.Read. The error does not name the path.
func ReadCertificates(path string) ([]byte, error) {
	content, err := smallfile.Read(path, maxCertificates)
	if err != nil {
		return nil, CertificateError{err}
	}
	return content, nil
}

// CertificateError is ErrCertificates with the words of its cause alone.
type CertificateError struct{ Cause error }

// Error returns the cause's text.
func (e CertificateError) Error() string { return e.Cause.Error() }

// Is makes it ErrCertificates.
func (e CertificateError) Is(target error) bool { return target == ErrCertificates }

// Unwrap returns the cause.
func (e CertificateError) Unwrap() error { return e.Cause }
