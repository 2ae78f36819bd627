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
	"strings"
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
	Etcd           string    `json:"etcd_cluster,omitempty"` // etcd cluster ID in hexadecimal, informational; each restore creates a new ID
	Parent         int       `json:"parent"`                 // generation that was restored; 0 if none
	ParentRevision int64     `json:"parent_revision"`        // restored revision of the parent; 0 if none
	Restore        string    `json:"restore,omitempty"`      // ID of the requested restore; empty if the restore recovered lost data
	Restored       []string  `json:"restored,omitempty"`     // IDs of previous restores, whose generations may have been deleted
	Adopted        []string  `json:"adopted,omitempty"`      // owners that took over the store with --adopt in this or an earlier generation
	Session        string    `json:"session,omitempty"`      // ID of the process that started the generation
	Created        time.Time `json:"created"`

	signed bool
}

const (
	clusterKind    = "cluster"
	generationKind = "generation"
)

// BeginGeneration creates a generation and sets Heading. store.ErrExists means that another process has already
// created the generation. Repeated calls by the same session are safe.
func (a *Archive) BeginGeneration(ctx context.Context, generation Generation) error {
	generation.Heading = newHeader(generationKind)
	// The milliseconds distinguish the generation from an earlier one with the same number, if the store was emptied.
	generation.Created = generation.Created.UTC().Truncate(time.Millisecond)
	err := a.putStatement(ctx, generationName(generation.Number), generation)
	if errors.Is(err, store.ErrExists) && generation.Session != "" {
		if existing, failed := a.Generation(ctx, generation.Number); failed == nil && existing.Session == generation.Session {
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
	if err == nil && (generation.Number != number || generation.Cluster == "" || generation.isInconsistent()) {
		err = r.mismatchError(name)
	}
	return generation, err
}

// isInconsistent reports whether fields contradict each other.
func (g Generation) isInconsistent() bool {
	return g.Parent < 0 || g.Parent >= g.Number || g.ParentRevision < 0 || g.Parent == 0 && g.ParentRevision > 0
}

// maxRestoreIDs limits the number of restore IDs that a generation records.
const maxRestoreIDs = 100

// Restores returns the IDs of the restores that created the generations and their predecessors, newest last.
func Restores(generations []Generation) []string {
	ids := collect(generations, func(g Generation) []string { return append(slices.Clone(g.Restored), g.Restore) })
	return ids[max(0, len(ids)-maxRestoreIDs):]
}

// Adoptions returns the owners that have adopted the store.
func Adoptions(generations []Generation) []string {
	return collect(generations, func(g Generation) []string { return g.Adopted })
}

// collect returns the distinct values of all generations.
func collect(generations []Generation, values func(Generation) []string) (all []string) {
	for _, g := range generations {
		for _, one := range values(g) {
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

// A Reservation states that no client of the cluster has received a higher revision, so that a restore knows which
// revisions it must skip.
type Reservation struct {
	format.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

// SafeRevision returns the revision from which a restored cluster continues, so that clients never see the same
// revision twice. If members have kept the reservation up to date, SafeRevision returns the reserved revision, and
// otherwise the highest known revision plus Margin. reserved is 0 if there is no reservation.
func SafeRevision(reserved, known int64) int64 {
	if reserved-known >= Renewal/2 { // half of Renewal, because a member may have been about to renew the reservation
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

// maxRevision is higher than any revision that a cluster could reach in nine thousand years at a million revisions
// per second. Reservations of maxRevision or more are ignored, because a cluster restored from them could run out
// of revisions.
const maxRevision = 1 << 58

// listReserved returns the reserved revisions that appear in object names, in ascending order.
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
// backed up. The identity file is stored in the data directory, so it is copied and restored together with the data.
// Recovery writes the file before etcd opens the data directory, and the backup writer updates it. The zero value means that
// the data does not belong to a store, for example if it was written by stock etcd or restored by etcdutl.
type Identity struct {
	Cluster    string          `json:"cluster"`           // cluster ID from cluster.json
	Generation int             `json:"generation"`        // number of the generation
	Position   format.Position `json:"position,omitzero"` // last known end of this data's backups
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
func ReadIdentity(dataDir string) (identity Identity, err error) {
	content, err := disk.ReadHere(filepath.Join(dataDir, IdentityFile), identityLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &identity)
	}
	if err == nil && (identity.Cluster == "" || identity.Generation <= 0) {
		err = errors.New("cluster or generation is missing")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read the cluster identity from %s: %w", filepath.Join(dataDir, IdentityFile), err)
	}
	return identity, nil
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

// Create creates the cluster manifest and a generation unless they exist, and returns the latest generation of the
// cluster. Concurrent calls by multiple members and repeated calls are safe. ErrForeign reports that the store
// belongs to another cluster, in which case nothing was written.
func (a *Archive) Create(ctx context.Context, cluster Cluster, number int) (Generation, error) {
	existing, err := a.CreateCluster(ctx, cluster)
	if err != nil {
		return Generation{}, err
	}
	all, err := a.Generations(ctx)
	creates := err == nil && len(all) == 0 || number == 1 && errors.Is(err, errFirstNameless)
	if creates && existing.Cluster == cluster.Cluster {
		err = a.BeginGeneration(ctx, Generation{Number: number, Cluster: existing.Cluster, Owner: cluster.Owner, Etcd: cluster.Etcd, Created: cluster.Created})
		if err == nil || errors.Is(err, store.ErrExists) {
			all = make([]Generation, 1)
			all[0], err = a.Generation(ctx, number) // not from a listing, which may omit the new generation
		}
	}
	if err != nil {
		return Generation{}, err
	}
	return a.latestGeneration(all, existing.Cluster, cluster.Cluster)
}

// CreateCluster creates the cluster manifest unless it exists, and returns the existing manifest. If multiple members
// call CreateCluster concurrently, all of them return the manifest that was created first, so callers may retry after
// a lost reply.
func (a *Archive) CreateCluster(ctx context.Context, cluster Cluster) (Cluster, error) {
	existing, err := a.Cluster(ctx)
	if !errors.Is(err, store.ErrNotFound) {
		return existing, err
	}
	all, err := a.Generations(ctx)
	if err != nil {
		return Cluster{}, err
	}
	if len(all) > 0 { // only the manifest is missing
		if _, err := a.latestGeneration(all, "", cluster.Cluster); err != nil {
			return Cluster{}, err
		}
		cluster.Cluster, cluster.Owner, cluster.Etcd = all[0].Cluster, all[0].Owner, all[0].Etcd
	}
	cluster.Heading, cluster.Created = newHeader(clusterKind), cluster.Created.UTC().Truncate(time.Second)
	err = a.putStatement(ctx, ClusterName, cluster)
	if errors.Is(err, store.ErrExists) {
		return a.Cluster(ctx)
	}
	return cluster, err
}

// CheckExists requests the cluster manifest and a generation by name, because a listing may not include them yet.
// CheckExists returns store.ErrNotFound if the manifest or the generation does not exist, and ErrForeign if it
// belongs to another cluster.
func (r *Reader) CheckExists(ctx context.Context, generation Generation) error {
	if _, err := r.Cluster(ctx); err != nil {
		return err
	}
	existing, err := r.Generation(ctx, generation.Number)
	if err != nil {
		return err
	}
	_, err = r.latestGeneration([]Generation{existing}, "", generation.Cluster)
	return err
}

// latestGeneration returns the newest generation of a cluster. If the cluster has no generation, latestGeneration
// returns an ErrForeign that names the cluster of the newest generation, or founder if the store has no generations.
func (r *Reader) latestGeneration(all []Generation, founder, cluster string) (Generation, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Cluster == cluster {
			return all[i], nil
		}
	}
	if len(all) > 0 {
		founder = all[len(all)-1].Cluster
	}
	return Generation{}, fmt.Errorf("%s: %w: the store was last written by cluster %s, but this is cluster %s", r.store, ErrForeign, founder, cluster)
}

// A Lineage lists the generations of a store.
type Lineage struct {
	Generations []Generation // oldest first
	Next        int          // number of the next generation; the store has no objects with this number
	Strays      []error      // an error for each generation that is not part of the history
}

// Newest returns the newest generation, or the zero value if there is none.
func (l Lineage) Newest() (newest Generation) {
	if len(l.Generations) > 0 {
		newest = l.Generations[len(l.Generations)-1]
	}
	return newest
}

// Generations returns the generations of the store, oldest first.
func (r *Reader) Generations(ctx context.Context) ([]Generation, error) {
	lineage, err := r.Lineage(ctx)
	return lineage.Generations, err
}

// Lineage reads the generations of the store. The oldest generation belongs to the history, and so does every
// generation whose predecessor has ended. All other generations are strays, because anyone with write access to the
// store can create a generation.json. Strays without verifiable backups are ignored. If a stray has verifiable
// backups, the end marker of the previous generation is missing, and Lineage returns format.ErrDamaged. If the newest
// generation has backups but no generation.json, Lineage returns ErrNameless.
func (r *Reader) Lineage(ctx context.Context) (Lineage, error) {
	lineage, err := r.readGenerations(ctx)
	if errors.Is(err, errUnlisted) { // the generation may have been created in the meantime
		return r.readGenerations(ctx)
	}
	return lineage, err
}

func (r *Reader) readGenerations(ctx context.Context) (l Lineage, err error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil {
		return Lineage{}, err
	}
	nameless := 0
	for _, number := range numbers {
		generation, err := r.Generation(ctx, number)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !NotVerified(err) {
			return Lineage{}, err
		}
		stray, failed := r.checkSuccessor(ctx, l.Newest(), number, err == nil)
		switch {
		case failed != nil:
			return Lineage{}, failed
		case stray != nil:
			l.Strays = append(l.Strays, stray)
		case errors.Is(err, store.ErrNotFound):
			nameless = number // generation.json is missing, but the generation has other objects
		case err != nil:
			return Lineage{}, err
		default:
			l.Generations = append(l.Generations, generation)
		}
	}
	for l.Next = l.Newest().Number + 1; slices.Contains(numbers, l.Next); {
		l.Next++
	}
	if err = r.checkNames(ctx, l.Generations, nameless); err == nil && l.Next == l.Newest().Number+1 {
		err = r.probeGenerations(ctx, l.Next, 1)
	}
	return l, err
}

// checkSuccessor checks whether the generation with the given number may follow the newest one. If the newest
// generation has not ended, checkSuccessor returns a stray error, or format.ErrDamaged if the given generation has
// backups. If the newest generation has no backups (for example, because it is being deleted), any generation with a
// statement may follow. If the end of the newest generation cannot be verified, any generation may follow.
func (r *Reader) checkSuccessor(ctx context.Context, newest Generation, number int, stated bool) (stray, err error) {
	if newest.Number == 0 {
		return nil, nil
	}
	switch ended, err := r.generationEnd(ctx, newest); {
	case err != nil:
		return nil, err
	case ended.stored && number >= ended.successor, !ended.stored && stated:
		return nil, nil
	}
	stray = fmt.Errorf("ignoring %s in %s: generation %d has not ended", GenerationPrefix(number), r.store, newest.Number)
	head, err := r.Head(ctx, number)
	switch {
	case err == nil && !head.Empty():
		return nil, r.wrapName(GenerationPrefix(number), fmt.Errorf("%w: the generation has backups, but the end marker of generation %d is missing; restore the marker "+
			"from an earlier object version, or delete the generation if none of your clusters created it", format.ErrDamaged, newest.Number))
	case err == nil || NotVerified(err):
		return stray, nil
	}
	return nil, err
}

// generationEnd returns the state of a generation's end, from the cache if the generation is known to have ended.
func (r *Reader) generationEnd(ctx context.Context, generation Generation) (endState, error) {
	// The number does not identify a generation, because the store may have been emptied and initialized again.
	id := generation.Cluster + " " + generation.Session + " " + generation.Created.String()
	if known, ok := r.endings.Load(id); ok {
		return known.(endState), nil
	}
	end := endState{successor: maxGeneration + 1, stored: true}
	head, err := r.Head(ctx, generation.Number)
	switch {
	case err == nil && head.Ending() != nil:
		end.successor = head.Ending().Successor
		r.endings.Store(id, end)
	case NotVerified(err), err == nil && head.Damaged != nil:
		return endState{stored: true}, nil // an end marker may exist but cannot be verified
	case err == nil:
		end.stored = !head.Empty()
	}
	return end, err
}

// An endState describes the end of a generation.
type endState struct {
	successor int  // lowest allowed number of the next generation
	stored    bool // the generation has backups
}

// errFirstNameless is ErrNameless for a store whose only generation is generation 1, so that Create can write the
// missing generation.json again.
var errFirstNameless = fmt.Errorf("%w", ErrNameless)

// checkNames returns ErrNameless if the newest generation with objects has backups but no statement. Older
// generations without a statement are ignored, because they may be partially deleted.
func (r *Reader) checkNames(ctx context.Context, all []Generation, nameless int) error {
	if nameless == 0 || len(all) > 0 && nameless < all[len(all)-1].Number {
		return nil
	}
	if reported, err := r.namedRevision(ctx, nameless); err != nil || reported == 0 {
		return err
	}
	why := ErrNameless
	if len(all) == 0 {
		if _, err := r.Cluster(ctx); Unusable(err) {
			return nil // callers report the missing cluster.json
		}
		if nameless == 1 {
			why = errFirstNameless
		}
	}
	return r.wrapName(generationName(nameless), why)
}

// errUnlisted reports that a listing does not include an existing object.
var errUnlisted = errors.New("object exists but is not listed")

// maxUnlisted is the highest generation number that ProbeGenerations requests.
const maxUnlisted = 100

// ProbeGenerations returns store.ErrUnavailable if a generation exists even though a listing shows none. Callers must
// not create a generation based on an outdated listing, and listings may be outdated for minutes. ProbeGenerations
// requests each generation by name and must only be called if the store has a cluster.json.
func (r *Reader) ProbeGenerations(ctx context.Context) error {
	return r.probeGenerations(ctx, 1, maxUnlisted)
}

func (r *Reader) probeGenerations(ctx context.Context, first, count int) error {
	return forEach(count, func(i int) error {
		_, err := r.Generation(ctx, first+i)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err == nil || NotVerified(err):
			return &store.Unavailable{Cause: fmt.Errorf("%s: %w", generationName(first+i), errUnlisted)}
		}
		return err
	})
}

// maxGeneration is the highest number that fits into an object name.
const maxGeneration = 999999

// generationNumbers returns the numbers of all generations with at least one object, in ascending order.
func (r *objectStore) generationNumbers(ctx context.Context) (all []int, err error) {
	for next, after := 0, ""; ; {
		for object, err := range r.store.List(ctx, generationsPrefix, after) {
			if err != nil {
				return nil, err
			}
			var number int
			directory, _, _ := strings.Cut(strings.TrimPrefix(object.Name, generationsPrefix), "/")
			if _, err := fmt.Sscanf(directory, "%d", &number); err == nil && number > next && number <= maxGeneration && strings.HasPrefix(object.Name, GenerationPrefix(number)) {
				all = append(all, number)
				break
			}
		}
		if len(all) == 0 || all[len(all)-1] == next {
			return all, nil
		}
		next = all[len(all)-1]
		after = GenerationPrefix(next) + "z" // sorts after all object names of the generation
	}
}

// FirstPrefix returns the prefix of the first generation with at least one object, or "" if there is none.
func (r *Reader) FirstPrefix(ctx context.Context) (string, error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return "", err
	}
	return GenerationPrefix(numbers[0]), nil
}

// LastNamed returns the highest revision that appears in the object names of the newest generation. If the newest
// generation has no backups yet, LastNamed returns the revision at which the restored cluster started, which it
// derives from the highest reservation. The result is not verified and may be too low, because the name of the last
// segment does not contain the segment's end.
func (r *Reader) LastNamed(ctx context.Context) (last int64, err error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return 0, err
	}
	newest := numbers[len(numbers)-1]
	last, err = r.namedRevision(ctx, newest)
	if err != nil || last > 0 || newest < 2 {
		return last, err
	}
	reserved, err := r.listReserved(ctx) // the highest one is Margin above the revision at which the cluster started
	if err != nil || len(reserved) == 0 {
		return 0, err
	}
	return max(0, slices.Max(reserved)-Margin), nil
}

// namedRevision returns the highest revision that appears in the object names of a generation, or 0 if there is none.
func (r *Reader) namedRevision(ctx context.Context, generation int) (int64, error) {
	fulls, _, err := r.listSnapshots(ctx, generation)
	if err != nil {
		return 0, err
	}
	objects, err := r.Objects(ctx, generation)
	return maxNamed(fulls, objects), err
}

// maxNamed returns the highest revision that appears in an object name.
func maxNamed(fulls []StoredFull, objects []Object) (last int64) {
	for _, full := range fulls {
		last = max(last, full.Revision)
	}
	for _, object := range objects {
		last = max(last, object.NamedEnd().Revision-1)
	}
	return last
}
