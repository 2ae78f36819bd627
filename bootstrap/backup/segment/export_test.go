package segment

import (
	"bytes"
	"crypto/sha256"

	"etcd-wrapper/bootstrap/backup/seal"
)

// Forge makes an object of records that nothing checked, with a manifest that fits their bytes.
func Forge(keys *seal.Keys, manifest Manifest, records []byte) (Object, error) {
	var data bytes.Buffer
	sealed, err := keys.Seal(&data)
	if err != nil {
		return Object{}, err
	}
	_, _ = sealed.Write(records)
	if err := sealed.Close(); err != nil {
		return Object{}, err
	}
	if manifest.RawBytes == 0 {
		manifest.RawBytes = int64(len(records))
	}
	manifest.Heading = seal.Heading{Format: seal.Format, Kind: Kind}
	manifest.Body = Body{Bytes: int64(data.Len()), SHA256: sha256.Sum256(data.Bytes())}
	line, err := keys.Sign(manifest)
	return Object{Manifest: manifest, Line: line, Data: data.Bytes()}, err
}
