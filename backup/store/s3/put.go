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

// abortDeadline limits the cleanup after a failed upload; Sweep does the rest.
const abortDeadline = 5 * time.Second

// Put implements store.Store. It assembles the parts of a large object itself, because the library's PutObject sends the condition
// when a multipart upload starts, where S3 ignores it, instead of when it is completed.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	upload := &upload{call: s.begin(ctx), doing: "cannot create " + name, key: s.prefix + name}
	upload.creates = true
	return wire.Upload(content, upload.single, upload.begin)
}

// unchunked prevents the library from signing bodies in chunks, which not every server supports.
const unchunked = true

// upload is an object in transit.
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

func (u *upload) single(piece []byte) error {
	inTransit, signed := sums(piece)
	put, err := u.store.core.PutObject(
		wire.WithObjectSize(u.ctx, len(piece)), u.store.bucket, u.key, bytes.NewReader(piece), int64(len(piece)), inTransit, signed, ifAbsent())
	if err == nil {
		err = u.confirm(put.ETag, hexMD5(piece), int64(len(piece)))
	}
	return u.failed(u.doing, err)
}

// confirm checks that a successful response is the store's, about these bytes. Its ETag is their MD5, unless the bucket encrypts with
// its own key: then S3 is asked for the size and the ETag
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html, "ETag").
func (u *upload) confirm(etag, sum string, size int64) error {
	switch etag {
	case sum:
		return nil
	case "":
		return wire.ErrUnexpectedResponse("an ETag")
	}
	stored, err := u.store.core.StatObject(u.ctx, u.store.bucket, u.key, minio.StatObjectOptions{})
	if err == nil && (stored.ETag != etag || stored.Size != size) {
		err = wire.ErrUnexpectedResponse("the ETag and the size of what was sent")
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
		err = wire.ErrUnexpectedResponse("an ETag")
	}
	if err == nil {
		sum := md5.Sum(piece)
		u.sums, u.size = append(u.sums, sum[:]...), u.size+int64(len(piece))
		u.parts = append(u.parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
	}
	return err
}

// Abort implements wire.Parts. If the upload was completed and only the reply was lost, this does nothing.
func (u *upload) Abort() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortDeadline)
	defer cancel()
	ctx = u.store.begin(ctx).ctx // also where nothing moved
	_ = u.store.core.AbortMultipartUpload(ctx, u.store.bucket, u.key, u.id)
}

// hexMD5 returns an MD5 as S3 writes it in an ETag.
func hexMD5(of []byte) string {
	sum := md5.Sum(of)
	return hex.EncodeToString(sum[:])
}

// sums returns the checksums of a piece: the MD5 is required with an object lock, the SHA-256 belongs to the signature.
func sums(piece []byte) (base64MD5, hexSHA256 string) {
	inTransit, signed := md5.Sum(piece), sha256.Sum256(piece)
	return base64.StdEncoding.EncodeToString(inTransit[:]), hex.EncodeToString(signed[:])
}
