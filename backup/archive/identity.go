package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/internal/disk"
)

// An Identity names the cluster and generation that etcd's data belong to, and how far they were stored. It is a file
// in the data directory, so it moves with the data. Recovery writes it before etcd opens the data, and the backup
// writer updates it. The zero value is that of data that belong to no store, as of a plain etcd or of etcdutl
// snapshot restore.
type Identity struct {
	Cluster    string          `json:"cluster"`           // as in the store's cluster.json
	Generation int             `json:"generation"`        //
	Position   format.Position `json:"position,omitzero"` // where the store was seen to end last, when that was of these data
	Session    string          `json:"session,omitempty"` // of the last process that has written backups of these data
}

// IdentityFile is its name in the data directory. etcd ignores it.
const IdentityFile = "etcd-wrapper.json"

// identityLimit is the maximum size of the file in bytes.
const identityLimit = 4 << 10

// Known reports whether the data name a cluster.
func (i Identity) Known() bool { return i.Cluster != "" }

// String describes the generation.
func (i Identity) String() string {
	if !i.Known() {
		return "no cluster that a store knows"
	}
	return fmt.Sprintf("generation %d of cluster %s", i.Generation, i.Cluster)
}

// ReadIdentity returns the identity of the data in a data directory; the zero value if there is no file.
func ReadIdentity(dataDir string) (is Identity, err error) {
	content, err := disk.ReadHere(filepath.Join(dataDir, IdentityFile), identityLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &is)
	}
	if err == nil && (is.Cluster == "" || is.Generation <= 0) {
		err = errors.New("it names no cluster")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("%s, which names the cluster that etcd's data belong to, cannot be read: %w", filepath.Join(dataDir, IdentityFile), err)
	}
	return is, nil
}

// Write stores the identity durably, and creates the data directory if there is none.
func (i Identity) Write(dataDir string) error {
	content, err := json.Marshal(i)
	if err == nil {
		err = os.MkdirAll(dataDir, 0o700)
	}
	if err == nil {
		err = disk.Replace(filepath.Join(dataDir, IdentityFile), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot record in %s which cluster etcd's data belong to: %w", filepath.Join(dataDir, IdentityFile), err)
	}
	return nil
}
