package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// abortDeadline bounds the cleaning up after an upload that failed; Sweep does what it leaves.
const abortDeadline = 5 * time.Second

// Put implements store.Store. The parts of a large object are put together by hand, because the library's PutObject sends the
// condition when a multipart upload begins, where S3 ignores it, and not when it is completed.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	upload := &upload{call: s.begin(ctx), doing: "cannot create " + name, key: s.prefix + name}
	upload.creates = true
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
	sums  []byte // the MD5 of each part
	size  int64  // bytes of all parts
}

func ifAbsent() minio.PutObjectOptions {
	options := minio.PutObjectOptions{DisableContentSha256: unchunked}
	options.SetMatchETagExcept("*")
	return options
}

func (u *upload) whole(piece []byte) error {
	inTransit, signed := sums(piece)
	put, err := u.store.core.PutObject(
		wire.Whole(u.ctx, len(piece)), u.store.bucket, u.key, bytes.NewReader(piece), int64(len(piece)), inTransit, signed, ifAbsent())
	if err == nil {
		err = u.confirm(put.ETag, hexMD5(piece), int64(len(piece)))
	}
	return u.failed(u.doing, err)
}

// confirm makes sure that what was answered of success is the store's answer about these bytes. Its ETag is their MD5, unless the
// bucket encrypts with a key of its own: then S3 says what it has
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html, "ETag").
func (u *upload) confirm(etag, sum string, size int64) error {
	switch etag {
	case sum:
		return nil
	case "":
		return wire.Unconfirmed("an ETag")
	}
	stored, err := u.store.core.StatObject(u.ctx, u.store.bucket, u.key, minio.StatObjectOptions{})
	if err == nil && (stored.ETag != etag || stored.Size != size) {
		err = wire.Unconfirmed("the ETag and the size of what was sent")
	}
	return err
}

func (u *upload) begin() (_ wire.Parts, err error) {
	u.id, err = u.store.core.NewMultipartUpload(u.ctx, u.store.bucket, u.key, minio.PutObjectOptions{})
	return u, u.failed(u.doing, err)
}

// Send implements wire.Parts.
func (u *upload) Send(piece []byte, last bool) error {
	if len(piece) > 0 {
		if err := u.part(piece); err != nil {
			return u.failed(u.doing, err)
		}
	}
	if !last {
		return nil
	}
	put, err := u.store.core.CompleteMultipartUpload(u.ctx, u.store.bucket, u.key, u.id, u.parts, ifAbsent())
	if err == nil {
		err = u.confirm(put.ETag, fmt.Sprintf("%s-%d", hexMD5(u.sums), len(u.parts)), u.size)
	}
	return u.failed(u.doing, err)
}

func (u *upload) part(piece []byte) error {
	inTransit, signed := sums(piece)
	number := len(u.parts) + 1
	part, err := u.store.core.PutObjectPart(u.ctx, u.store.bucket, u.key, u.id, number, bytes.NewReader(piece),
		int64(len(piece)), minio.PutObjectPartOptions{Md5Base64: inTransit, Sha256Hex: signed, DisableContentSha256: unchunked})
	if err == nil && part.ETag == "" {
		err = wire.Unconfirmed("an ETag")
	}
	if err == nil {
		sum := md5.Sum(piece)
		u.sums, u.size = append(u.sums, sum[:]...), u.size+int64(len(piece))
		u.parts = append(u.parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
	}
	return err
}

// Abort implements wire.Parts. If the upload was completed and only the reply was lost, there is nothing to abort.
func (u *upload) Abort() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortDeadline)
	defer cancel()
	ctx = u.store.begin(ctx).ctx // also where nothing moved
	_ = u.store.core.AbortMultipartUpload(ctx, u.store.bucket, u.key, u.id)
}

// hexMD5 is how S3 writes an MD5 in an ETag.
func hexMD5(of []byte) string {
	sum := md5.Sum(of)
	return hex.EncodeToString(sum[:])
}

// sums are what a server checks: with an object lock it insists on the MD5; the SHA-256 belongs to the signature.
func sums(piece []byte) (base64MD5, hexSHA256 string) {
	inTransit, signed := md5.Sum(piece), sha256.Sum256(piece)
	return base64.StdEncoding.EncodeToString(inTransit[:]), hex.EncodeToString(signed[:])
}
