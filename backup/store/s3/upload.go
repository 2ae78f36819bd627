package s3

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// upload creates an object in a single request or a multipart upload. S3 ignores If-None-Match in the first request
// of a multipart upload, so the last request contains the header.
type upload struct {
	store *Store
	key   string
	id    string
	parts []part
	sums  []byte // MD5 of each part
	size  int64  // total size of all parts
}

type part struct {
	PartNumber int
	ETag       string
}

var ifAbsent = map[string]string{"If-None-Match": "*"}

func (s *Store) upload(key string) wire.Upload { return &upload{store: s, key: key} }

// send sends a body with its MD5, which is required by object lock.
func (u *upload) send(ctx context.Context, method string, query url.Values, header map[string]string, body []byte, into any) (etag string, err error) {
	sum := md5.Sum(body)
	all := map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:]), "Content-Type": "application/octet-stream"}
	maps.Copy(all, header)
	request := wire.Request{Method: method, URL: u.store.url(u.key), Query: query, Header: all, Body: body}
	response, err := u.store.Send(ctx, request, into, http.StatusOK)
	if err != nil {
		return "", err
	}
	return trimETag(response.Header.Get("ETag")), nil
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	etag, err := u.send(ctx, http.MethodPut, nil, ifAbsent, content, nil)
	if err != nil {
		return err
	}
	return u.confirm(ctx, etag, hexMD5(content), int64(len(content)))
}

// confirm checks that a successful response comes from the store and refers to the uploaded bytes. The ETag is the
// MD5 of the bytes unless the bucket uses its own encryption key. In that case, confirm compares the size and ETag of
// the stored object (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html, "ETag").
func (u *upload) confirm(ctx context.Context, etag, sum string, size int64) error {
	switch etag {
	case sum:
		return nil
	case "":
		return wire.ErrUnexpectedResponse("an ETag")
	}
	stored, err := u.store.Send(ctx, wire.Request{Method: http.MethodHead, URL: u.store.url(u.key)}, nil, http.StatusOK)
	if err == nil && (trimETag(stored.Header.Get("ETag")) != etag || stored.ContentLength != size) {
		err = wire.ErrUnexpectedResponse("the expected ETag and size")
	}
	return err
}

// Start implements wire.Upload.
func (u *upload) Start(ctx context.Context) error {
	var started struct {
		XMLName xml.Name `xml:"InitiateMultipartUploadResult"`
		ID      string   `xml:"UploadId"`
	}
	_, err := u.send(ctx, http.MethodPost, url.Values{"uploads": {""}}, nil, nil, &started)
	u.id = started.ID
	return err
}

// Part implements wire.Upload.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	if len(piece) > 0 {
		number := len(u.parts) + 1
		etag, err := u.send(ctx, http.MethodPut, url.Values{"partNumber": {fmt.Sprint(number)}, "uploadId": {u.id}}, nil, piece, nil)
		if err == nil && etag == "" {
			err = wire.ErrUnexpectedResponse("an ETag")
		}
		if err != nil {
			return err
		}
		sum := md5.Sum(piece)
		u.sums, u.size = append(u.sums, sum[:]...), u.size+int64(len(piece))
		u.parts = append(u.parts, part{number, etag})
	}
	if !last {
		return nil
	}
	return u.complete(ctx)
}

func (u *upload) complete(ctx context.Context) error {
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Parts   []part   `xml:"Part"`
	}{Parts: u.parts})
	if err != nil {
		return err
	}
	var completed struct {
		XMLName xml.Name // result, or an error despite the status
		ETag    string
	}
	if _, err := u.send(ctx, http.MethodPost, url.Values{"uploadId": {u.id}}, ifAbsent, list, &completed); err != nil {
		return err
	}
	if completed.XMLName.Local == "Error" {
		return &store.Unavailable{Cause: errors.New("the server could not complete the upload")}
	}
	return u.confirm(ctx, trimETag(completed.ETag), fmt.Sprintf("%s-%d", hexMD5(u.sums), len(u.parts)), u.size)
}

// Abort implements wire.Upload. If the upload was completed but the reply was lost, Abort has no effect. Sweep aborts
// the remaining uploads.
func (u *upload) Abort(ctx context.Context) { _ = u.store.abort(ctx, u.key, u.id) }

// hexMD5 returns an MD5 in the ETag format of S3.
func hexMD5(content []byte) string {
	sum := md5.Sum(content)
	return hex.EncodeToString(sum[:])
}

func trimETag(etag string) string { return strings.Trim(etag, `"`) }
