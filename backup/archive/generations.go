package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
)

// Cluster is the cluster manifest. The manifest is created once, and every statement in the store refers to the same
// cluster.
type Cluster struct {
	format.Heading
	Cluster string    `json:"cluster"`                // cluster ID: 128 random bits in hexadecimal, chosen when the store was initialized
	Owner   string    `json:"owner"`                  // owner that initialized the store (NAMESPACE/NAME)
	Etcd    string    `json:"etcd_cluster,omitempty"` // etcd cluster ID in hexadecimal, informational; empty if unknown
	Created time.Time `json:"created"`
}

// A Generation is the history of a cluster between two restores or adoptions.
type Generation struct {
	format.Heading
	Number         int       `json:"number"`                 // starts at 1
	Cluster        string    `json:"cluster"`                // cluster ID
	Owner          string    `json:"owner"`                  // owner of the cluster in this generation (NAMESPACE/NAME)
	Etcd           string    `json:"etcd_cluster,omitempty"` // etcd cluster ID in hexadecimal, informational; each restore creates a new one
	Parent         int       `json:"parent"`                 // generation that was restored; 0 if none
	ParentRevision int64     `json:"parent_revision"`        // restored revision of the parent; 0 if none
	Restore        string    `json:"restore,omitempty"`      // ID of the requested restore; empty if lost data was restored
	Restored       []string  `json:"restored,omitempty"`     // IDs of earlier restores; their generations may have been deleted
	Adopted        []string  `json:"adopted,omitempty"`      // owners that took over the store with --adopt in this or an earlier generation
	Session        string    `json:"session,omitempty"`      // process that started the generation (random, hexadecimal)
	Created        time.Time `json:"created"`

	signed bool
}

const (
	clusterKind    = "cluster"
	generationKind = "generation"
)

// BeginGeneration creates a generation and sets Heading. store.ErrExists means that another process created the
// generation: if two processes complete the end of the same generation, only one of them creates the successor. Calls
// may be repeated within a session.
func (a *Archive) BeginGeneration(ctx context.Context, generation Generation) error {
	generation.Heading = newHeader(generationKind)
	generation.Created = generation.Created.UTC().Truncate(time.Millisecond) // distinguishes two stores with the same cluster ID
	err := a.putStatement(ctx, generationName(generation.Number), generation)
	if errors.Is(err, store.ErrExists) && generation.Session != "" {
		if there, failed := a.Generation(ctx, generation.Number); failed == nil && there.Session == generation.Session {
			return nil
		}
	}
	return err
}

// MayAdd returns ErrUnsigned if this process must not add objects to a generation. Writers call MayAdd before
// writing.
func (a *Archive) MayAdd(to Generation) error {
	if to.signed && !a.keys.Signs() {
		return fmt.Errorf("generation %d in %s: %w", to.Number, a.store, ErrUnsigned)
	}
	return nil
}

// Cluster returns the cluster manifest, or store.ErrNotFound if there is none.
func (r *objectStore) Cluster(ctx context.Context) (Cluster, error) {
	var cluster Cluster
	_, err := r.readStatement(ctx, ClusterName, clusterKind, &cluster)
	if err == nil && cluster.Cluster == "" {
		err = r.mismatchError(ClusterName)
	}
	return cluster, err
}

// Generation returns the statement of a generation, or store.ErrNotFound if there is none.
func (r *objectStore) Generation(ctx context.Context, number int) (Generation, error) {
	var generation Generation
	name := generationName(number)
	line, err := r.readStatement(ctx, name, generationKind, &generation)
	generation.signed = format.Signed(line)
	if err == nil && (generation.Number != number || generation.Cluster == "" || generation.check()) {
		err = r.mismatchError(name)
	}
	return generation, err
}

// check reports whether fields are inconsistent.
func (g Generation) check() bool {
	return g.Parent < 0 || g.Parent >= g.Number || g.ParentRevision < 0 || g.Parent == 0 && g.ParentRevision > 0
}

// maxRestoreIDs limits the number of restore IDs that a generation records.
const maxRestoreIDs = 100

// Restores returns the IDs of the restores that created the generations, newest last.
func Restores(generations []Generation) []string {
	ids := unique(generations, func(g Generation) []string { return append(slices.Clone(g.Restored), g.Restore) })
	return ids[max(0, len(ids)-maxRestoreIDs):]
}

// Adoptions returns the owners that have adopted the store.
func Adoptions(generations []Generation) []string {
	return unique(generations, func(g Generation) []string { return g.Adopted })
}

func unique(generations []Generation, of func(Generation) []string) (all []string) {
	for _, g := range generations {
		for _, one := range of(g) {
			if one != "" && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

const reservationKind = "reservation"

// Margin is the number of revisions that a new reservation covers. Members renew a reservation when fewer than
// Renewal revisions are left.
const (
	Margin  = 1_000_000_000
	Renewal = Margin / 4
)

// A Reservation states that no client has received a higher revision.
type Reservation struct {
	format.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

// SafeRevision returns the revision from which a restored cluster continues, so that clients never see the same
// revision twice. SafeRevision returns the reserved revision if members kept the reservation up to date, and Margin
// above the highest known revision otherwise. reserved is 0 if there is no reservation.
func SafeRevision(reserved, known int64) int64 {
	if reserved-known >= Renewal/2 { // a member may have been about to renew the reservation
		return reserved
	}
	return max(reserved, known+Margin)
}

// Reserve creates a reservation and sets Heading. store.ErrExists means that the revision is already reserved.
func (a *Archive) Reserve(ctx context.Context, reservation Reservation) error {
	reservation.Heading = newHeader(reservationKind)
	reservation.Created = reservation.Created.UTC().Truncate(time.Second)
	return a.putStatement(ctx, reservationName(reservation.Revision), reservation)
}

// Reserved returns the highest verifiable reservation, or store.ErrNotFound if there is none.
func (r *objectStore) Reserved(ctx context.Context) (Reservation, error) {
	all, err := r.listReserved(ctx)
	if err != nil {
		return Reservation{}, err
	}
	for _, revision := range slices.Backward(all) {
		var reservation Reservation
		_, err := r.readStatement(ctx, reservationName(revision), reservationKind, &reservation)
		if err == nil && reservation.Revision == revision {
			return reservation, nil
		}
		if err != nil && !NotVerified(err) {
			return Reservation{}, err
		}
	}
	return Reservation{}, r.wrapName(reservationPrefix, store.ErrNotFound)
}

// maxRevision is a revision that no cluster reaches, even with a million revisions a second for ten thousand years.
// Higher reservations are ignored, because they would leave no revisions for the cluster.
const maxRevision = 1 << 58

// listReserved returns the reserved revisions according to object names, in order.
func (r *objectStore) listReserved(ctx context.Context) (all []int64, err error) {
	for object, err := range r.store.List(ctx, reservationPrefix, "") {
		if err != nil {
			return nil, err
		}
		var revision int64
		if _, err := fmt.Sscanf(object.Name, reservationPrefix+"%d", &revision); err == nil && reservationName(revision) == object.Name && revision < maxRevision {
			all = append(all, revision)
		}
	}
	return all, nil
}

func reservationName(revision int64) string {
	return fmt.Sprintf("%s%019d", reservationPrefix, revision)
}

// An Identity is the cluster and generation of the data in a data directory, and the position up to which the data is
// backed up. The identity file is in the data directory and therefore moves with the data. Recovery writes the file
// before etcd opens the data, and the backup writer updates it. The zero value means that the data does not belong to
// a store, for example because it was written by stock etcd or restored by etcdutl.
type Identity struct {
	Cluster    string          `json:"cluster"`           // cluster ID from cluster.json
	Generation int             `json:"generation"`        //
	Position   format.Position `json:"position,omitzero"` // last known end of the backups of this data
	Session    string          `json:"session,omitempty"` // last process that wrote backups of this data
}

// IdentityFile is the name of the identity file in the data directory. etcd ignores the file.
const IdentityFile = "etcd-wrapper.json"

// identityLimit is the maximum size of the identity file in bytes.
const identityLimit = 4 << 10

// Known reports whether the data belongs to a known cluster.
func (i Identity) Known() bool { return i.Cluster != "" }

// String describes the cluster and generation.
func (i Identity) String() string {
	if !i.Known() {
		return "no known cluster"
	}
	return fmt.Sprintf("generation %d of cluster %s", i.Generation, i.Cluster)
}

// ReadIdentity returns the identity of the data in a data directory, or the zero value if there is no identity file.
func ReadIdentity(dataDir string) (is Identity, err error) {
	content, err := disk.ReadHere(filepath.Join(dataDir, IdentityFile), identityLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &is)
	}
	if err == nil && (is.Cluster == "" || is.Generation <= 0) {
		err = errors.New("cluster or generation is missing")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read the cluster identity from %s: %w", filepath.Join(dataDir, IdentityFile), err)
	}
	return is, nil
}

// Write durably stores the identity and creates the data directory if necessary.
func (i Identity) Write(dataDir string) error {
	content, err := json.Marshal(i)
	if err == nil {
		err = os.MkdirAll(dataDir, 0o700)
	}
	if err == nil {
		err = disk.Replace(filepath.Join(dataDir, IdentityFile), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write the cluster identity to %s: %w", filepath.Join(dataDir, IdentityFile), err)
	}
	return nil
}
