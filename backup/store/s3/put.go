package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// abortDeadline bounds the cleaning up after an upload that failed; Sweep does what it leaves.
const abortDeadline = 5 * time.Second

// Put is store.Store's. The parts of a large object are put together by hand, because the library's PutObject sends the
// condition when a multipart upload begins, where S3 ignores it, and not when it is completed.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	upload := &upload{call: s.begin(ctx), doing: "cannot create " + name, key: s.prefix + name}
	return wire.Upload(content, upload.whole, upload.begin)
}

// unchunked keeps the library from signing bodies in chunks, which not every server understands: we have the sum of the whole.
const unchunked = true

// upload is one object on its way.
type upload struct {
	*call
	doing string
	key   string
	id    string
	parts []minio.CompletePart
}

func ifAbsent() minio.PutObjectOptions {
	options := minio.PutObjectOptions{DisableContentSha256: unchunked}
	options.SetMatchETagExcept("*")
	return options
}

func (u *upload) whole(piece []byte) error {
	md5, sha256 := sums(piece)
	_, err := u.store.core.PutObject(
		u.ctx, u.store.bucket, u.key, bytes.NewReader(piece), int64(len(piece)), md5, sha256, ifAbsent())
	return u.failed(u.doing, err)
}

func (u *upload) begin() (_ wire.Parts, err error) {
	u.id, err = u.store.core.NewMultipartUpload(u.ctx, u.store.bucket, u.key, minio.PutObjectOptions{})
	return u, u.failed(u.doing, err)
}

// Send is wire.Parts's.
func (u *upload) Send(piece []byte, last bool) error {
	if len(piece) > 0 {
		if err := u.part(piece); err != nil {
			return u.failed(u.doing, err)
		}
	}
	if !last {
		return nil
	}
	_, err := u.store.core.CompleteMultipartUpload(u.ctx, u.store.bucket, u.key, u.id, u.parts, ifAbsent())
	return u.failed(u.doing, err)
}

func (u *upload) part(piece []byte) error {
	md5, sha256 := sums(piece)
	number := len(u.parts) + 1
	part, err := u.store.core.PutObjectPart(u.ctx, u.store.bucket, u.key, u.id, number, bytes.NewReader(piece),
		int64(len(piece)), minio.PutObjectPartOptions{Md5Base64: md5, Sha256Hex: sha256, DisableContentSha256: unchunked})
	if err == nil {
		u.parts = append(u.parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
	}
	return err
}

// Abort is wire.Parts's. If the upload was completed and only the reply was lost, there is nothing to abort.
func (u *upload) Abort() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortDeadline)
	defer cancel()
	ctx = u.store.begin(ctx).ctx // also where nothing moved
	_ = u.store.core.AbortMultipartUpload(ctx, u.store.bucket, u.key, u.id)
}

// sums are what a server checks: with an object lock it insists on the MD5; the SHA-256 belongs to the signature.
func sums(piece []byte) (base64MD5, hexSHA256 string) {
	inTransit, signed := md5.Sum(piece), sha256.Sum256(piece)
	return base64.StdEncoding.EncodeToString(inTransit[:]), hex.EncodeToString(signed[:])
}
