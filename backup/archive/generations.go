package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Cluster is the cluster manifest. It is created once, and every statement in the store names the same cluster.
type Cluster struct {
	format.Heading
	Cluster string    `json:"cluster"`                // made up when the store was founded: 128 random bits, hexadecimal
	Owner   string    `json:"owner"`                  // who founded it, NAMESPACE/NAME
	Etcd    string    `json:"etcd_cluster,omitempty"` // etcd's cluster id, hexadecimal, for people; empty if it is not known
	Created time.Time `json:"created"`
}

// A Generation is the history of a cluster between two restores or adoptions.
type Generation struct {
	format.Heading
	Number         int       `json:"number"`                 // from 1 on
	Cluster        string    `json:"cluster"`                // the store's
	Owner          string    `json:"owner"`                  // whose the cluster is from here on, NAMESPACE/NAME
	Etcd           string    `json:"etcd_cluster,omitempty"` // etcd's cluster id, hexadecimal, for people; every restore makes a new one
	Parent         int       `json:"parent"`                 // the generation that was restored; 0 for none
	ParentRevision int64     `json:"parent_revision"`        // and up to where; 0 for none
	Restore        string    `json:"restore,omitempty"`      // the id of the restore that was asked for; none if data had been lost
	Restored       []string  `json:"restored,omitempty"`     // the ids of restores before that one, whose generations may be gone by now
	Adopted        []string  `json:"adopted,omitempty"`      // the owners that have taken the store by --adopt, in this generation or before
	Session        string    `json:"session,omitempty"`      // of the process that began it: random, hexadecimal
	Created        time.Time `json:"created"`

	signed bool
}

const (
	clusterKind    = "cluster"
	generationKind = "generation"
)

// Found creates the cluster manifest, unless there is one, and a generation, unless there is any, and returns the
// newest generation of the cluster. ErrForeign reports that the store belongs to another cluster; then nothing was
// written. It may be repeated, and called by several members concurrently.
func (w *Writer) Found(ctx context.Context, cluster Cluster, number int) (Generation, error) {
	there, err := w.FoundCluster(ctx, cluster)
	if err != nil {
		return Generation{}, err
	}
	all, err := w.reader.Generations(ctx)
	begins := err == nil && len(all) == 0 || number == 1 && errors.Is(err, errFirstNameless)
	if begins && there.Cluster == cluster.Cluster {
		err = w.BeginGeneration(ctx, Generation{Number: number, Cluster: there.Cluster, Owner: cluster.Owner, Etcd: cluster.Etcd, Created: cluster.Created})
		if err == nil || errors.Is(err, store.ErrExists) {
			all = make([]Generation, 1)
			all[0], err = w.reader.Generation(ctx, number) // even if it is not listed yet
		}
	}
	if err != nil {
		return Generation{}, err
	}
	return w.reader.newestGeneration(all, there.Cluster, cluster.Cluster)
}

// FoundCluster creates the cluster manifest, unless there is one, and returns the one that exists: of several members
// that try at once, one succeeds. So a lost reply does no harm.
func (w *Writer) FoundCluster(ctx context.Context, cluster Cluster) (Cluster, error) {
	there, err := w.reader.Cluster(ctx)
	if !errors.Is(err, store.ErrNotFound) {
		return there, err
	}
	all, err := w.reader.Generations(ctx)
	if err != nil {
		return Cluster{}, err
	}
	if len(all) > 0 { // only the manifest is missing
		if _, err := w.reader.newestGeneration(all, "", cluster.Cluster); err != nil {
			return Cluster{}, err
		}
		cluster.Cluster, cluster.Owner, cluster.Etcd = all[0].Cluster, all[0].Owner, all[0].Etcd
	}
	cluster.Heading, cluster.Created = newHeading(clusterKind), cluster.Created.UTC().Truncate(time.Second)
	err = w.putStatement(ctx, ClusterName, cluster)
	if errors.Is(err, store.ErrExists) {
		return w.reader.Cluster(ctx)
	}
	return cluster, err
}

// BeginGeneration creates a generation. store.ErrExists reports that another process has created it: of two that
// complete one end, one creates the successor. It may be repeated within a session. It sets Heading.
func (w *Writer) BeginGeneration(ctx context.Context, generation Generation) error {
	generation.Heading = newHeading(generationKind)
	generation.Created = generation.Created.UTC().Truncate(time.Millisecond) // distinguishes two stores with one cluster ID
	err := w.putStatement(ctx, generationName(generation.Number), generation)
	if errors.Is(err, store.ErrExists) && generation.Session != "" {
		if there, failed := w.reader.Generation(ctx, generation.Number); failed == nil && there.Session == generation.Session {
			return nil
		}
	}
	return err
}

// MayAdd returns an ErrUnsigned if this process must not add anything to a generation. Call it before anything is
// written.
func (w *Writer) MayAdd(to Generation) error {
	if to.signed && !w.reader.keys.Signs() {
		return fmt.Errorf("generation %d in %s is %w", to.Number, w.reader.store, ErrUnsigned)
	}
	return nil
}

// Cluster returns the cluster manifest. store.ErrNotFound reports that there is none.
func (r *Reader) Cluster(ctx context.Context) (Cluster, error) {
	var cluster Cluster
	_, err := r.readStatement(ctx, ClusterName, clusterKind, &cluster)
	if err == nil && cluster.Cluster == "" {
		err = r.damagedError(ClusterName)
	}
	return cluster, err
}

// Still checks by name that the cluster manifest and a generation exist, because a listing may lack them.
// store.ErrNotFound reports that one does not, and ErrForeign that another cluster has replaced it.
func (r *Reader) Still(ctx context.Context, generation Generation) error {
	if _, err := r.Cluster(ctx); err != nil {
		return err
	}
	there, err := r.Generation(ctx, generation.Number)
	if err != nil {
		return err
	}
	_, err = r.newestGeneration([]Generation{there}, "", generation.Cluster)
	return err
}

// newestGeneration returns the newest generation of a cluster. If there is no generation, the store belongs to the
// founder.
func (r *Reader) newestGeneration(all []Generation, founder, cluster string) (Generation, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Cluster == cluster {
			return all[i], nil
		}
	}
	if len(all) > 0 {
		founder = all[len(all)-1].Cluster
	}
	return Generation{}, fmt.Errorf("%s is %w: it was last written by cluster %s, and this is %s", r.store, ErrForeign, founder, cluster)
}

// A Lineage is the history of a store's generations.
type Lineage struct {
	Generations []Generation // oldest first
	Next        int          // number for the next generation: the first one after the newest that nothing in the store uses
	Strays      []error      // one for each generation that is not part of the history; each names it
}

// Newest returns the newest generation; the zero value if there is none.
func (l Lineage) Newest() (newest Generation) {
	if len(l.Generations) > 0 {
		newest = l.Generations[len(l.Generations)-1]
	}
	return newest
}

// Generations returns the generations of Lineage.
func (r *Reader) Generations(ctx context.Context) ([]Generation, error) {
	lineage, err := r.Lineage(ctx)
	return lineage.Generations, err
}

// Lineage reads the generations of the store. A generation belongs to the history if it is the oldest one, or if the
// sequence of the one before has ended. Anyone who can write to the store can create a generation.json, but the end
// of a sequence is its next object, which the writer creates itself as long as it runs. A generation that does not
// belong to the history is a stray. Strays change nothing, unless they have backups that can be verified: then the
// object that ends the generation before is missing, and the error is a format.ErrDamaged. ErrNameless reports that
// the newest generation has backups and no generation.json.
func (r *Reader) Lineage(ctx context.Context) (Lineage, error) {
	lineage, err := r.listLineage(ctx)
	if errors.Is(err, errUnlisted) { // or it was created meanwhile
		return r.listLineage(ctx)
	}
	return lineage, err
}

func (r *Reader) listLineage(ctx context.Context) (l Lineage, err error) {
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
		stray, failed := r.checkStray(ctx, l.Newest(), number, err == nil)
		switch {
		case failed != nil:
			return Lineage{}, failed
		case stray != nil:
			l.Strays = append(l.Strays, stray)
		case errors.Is(err, store.ErrNotFound):
			nameless = number // there are other objects of it
		case err != nil:
			return Lineage{}, err
		default:
			l.Generations = append(l.Generations, generation)
		}
	}
	for l.Next = l.Newest().Number + 1; slices.Contains(numbers, l.Next); {
		l.Next++
	}
	if err := r.checkNames(ctx, l.Generations, nameless); err != nil {
		return l, err
	}
	if following := l.Newest().Number + 1; !slices.Contains(numbers, following) {
		return l, r.findUnlisted(ctx, following, 1)
	}
	return l, nil
}

// checkStray returns an error that names a generation if it cannot follow the newest one; nil if it may. While
// nothing is stored in the newest one, as during its deletion, any generation with a statement may follow; if its end
// cannot be verified, any generation may.
func (r *Reader) checkStray(ctx context.Context, newest Generation, number int, stated bool) (stray, err error) {
	if newest.Number == 0 {
		return nil, nil
	}
	switch ended, err := r.generationEnd(ctx, newest); {
	case err != nil:
		return nil, err
	case ended.stored && number >= ended.successor, !ended.stored && stated:
		return nil, nil
	}
	stray = fmt.Errorf("%s in %s is ignored: generation %d has not ended", GenerationPrefix(number), r.store, newest.Number)
	head, err := r.Head(ctx, number)
	switch {
	case err == nil && !head.Empty():
		return nil, r.wrapName(GenerationPrefix(number), fmt.Errorf("%w: it has backups, although nothing in the store ends generation %d: restore the object "+
			"that does from an earlier version of the bucket, or delete this generation if none of your clusters has created it", format.ErrDamaged, newest.Number))
	case err == nil || NotVerified(err):
		return stray, nil
	}
	return nil, err
}

// generationEnd returns how a generation ends.
func (r *Reader) generationEnd(ctx context.Context, generation Generation) (ending, error) {
	id := generation.Cluster + " " + generation.Session + " " + generation.Created.String() // the store may have been emptied
	if known, is := r.endings.Load(id); is {
		return known.(ending), nil
	}
	end := ending{successor: maxGeneration + 1, stored: true}
	head, err := r.Head(ctx, generation.Number)
	switch {
	case err == nil && head.Ending() != nil:
		end.successor = head.Ending().Successor
		r.endings.Store(id, end)
	case NotVerified(err), err == nil && head.Damaged != nil:
		return ending{stored: true}, nil // it may have ended
	case err == nil:
		end.stored = !head.Empty()
	}
	return end, err
}

// An ending is the end of a generation. One that was found is final.
type ending struct {
	successor int  // lowest number of a generation that may follow
	stored    bool // the generation has backups
}

// errFirstNameless is the ErrNameless of a store whose cluster.json names the cluster of the first generation.
var errFirstNameless = fmt.Errorf("%w", ErrNameless)

// checkNames returns an ErrNameless if the newest generation with objects has backups and no statement. An older one
// may be half deleted.
func (r *Reader) checkNames(ctx context.Context, all []Generation, nameless int) error {
	if nameless == 0 || len(all) > 0 && nameless < all[len(all)-1].Number {
		return nil
	}
	if reported, err := r.reportedRevision(ctx, nameless); err != nil || reported == 0 {
		return err
	}
	why := ErrNameless
	if len(all) == 0 {
		if _, err := r.Cluster(ctx); Unusable(err) {
			return nil // nothing names the cluster; callers report that
		}
		if nameless == 1 {
			why = errFirstNameless
		}
	}
	return r.wrapName(generationName(nameless), why)
}

// errUnlisted reports that a listing lacks an object that exists.
var errUnlisted = errors.New("which is there")

// maxUnlisted is the highest number that FindUnlisted asks for.
const maxUnlisted = 100

// FindUnlisted returns a store.ErrUnavailable if a generation exists although a listing shows none: a store may list
// minutes late, and nothing may be created because of such a listing. It asks for each number by name. Call it only if
// the store names a cluster.
func (r *Reader) FindUnlisted(ctx context.Context) error { return r.findUnlisted(ctx, 1, maxUnlisted) }

func (r *Reader) findUnlisted(ctx context.Context, first, count int) error {
	return forEach(count, func(i int) error {
		_, err := r.Generation(ctx, first+i)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err == nil || NotVerified(err):
			return &store.Unavailable{Cause: fmt.Errorf("its listing lacks %s, %w", generationName(first+i), errUnlisted)}
		}
		return err
	})
}

// maxGeneration is the highest number that fits into a name.
const maxGeneration = 999999

// generationNumbers returns the numbers of the generations of which any object exists, in order.
func (r *Reader) generationNumbers(ctx context.Context) (all []int, err error) {
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
		after = GenerationPrefix(next) + "z" // sorts after all of its names
	}
}

// Remains returns the prefix of the first generation of which any object exists; empty if there is none.
func (r *Reader) Remains(ctx context.Context) (string, error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return "", err
	}
	return GenerationPrefix(numbers[0]), nil
}

// Generation reads the statement of a generation. store.ErrNotFound reports that there is none.
func (r *Reader) Generation(ctx context.Context, number int) (Generation, error) {
	var generation Generation
	name := generationName(number)
	line, err := r.readStatement(ctx, name, generationKind, &generation)
	generation.signed = format.Signed(line)
	if err == nil && (generation.Number != number || generation.Cluster == "" || generation.check()) {
		err = r.damagedError(name)
	}
	return generation, err
}

// check reports whether fields contradict one another.
func (g Generation) check() bool {
	return g.Parent < 0 || g.Parent >= g.Number || g.ParentRevision < 0 || g.Parent == 0 && g.ParentRevision > 0
}

// maxRestoreIDs limits the IDs of restores that a generation records.
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

// Margin is the lead of a new reservation, in revisions. Below Renewal it is renewed.
const (
	Margin  = 1_000_000_000
	Renewal = Margin / 4
)

// A Reservation states that no client was given a revision above this one.
type Reservation struct {
	format.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

// Above returns the revision from which a restored cluster continues, so that no client sees a revision twice: the
// reservation if members have kept it ahead, otherwise Margin above the highest known revision. reserved is 0 if
// there is none.
func Above(reserved, known int64) int64 {
	if reserved-known >= Renewal/2 { // a member may have been about to renew it
		return reserved
	}
	return max(reserved, known+Margin)
}

// Reserve creates a reservation and sets Heading. store.ErrExists reports that there is one of that revision.
func (w *Writer) Reserve(ctx context.Context, reservation Reservation) error {
	reservation.Heading = newHeading(reservationKind)
	reservation.Created = reservation.Created.UTC().Truncate(time.Second)
	return w.putStatement(ctx, reservationName(reservation.Revision), reservation)
}

// Reserved returns the reservation of the highest revision that can be verified. store.ErrNotFound reports that there
// is none.
func (r *Reader) Reserved(ctx context.Context) (Reservation, error) {
	all, err := r.listReservations(ctx)
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

// maxRevision is a revision that no cluster reaches, at a million a second for ten thousand years. A higher
// reservation would leave no revisions.
const maxRevision = 1 << 58

// listReservations returns the revisions in the names of reservations, in order.
func (r *Reader) listReservations(ctx context.Context) (all []int64, err error) {
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

// Reported returns the last revision that names suggest, of the newest generation with any object, or of what that
// was restored from while it has no backups. It is for callers that cannot verify the objects. Names prove nothing,
// and that of the last segment does not say where it ends.
func (r *Reader) Reported(ctx context.Context) (last int64, err error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return 0, err
	}
	newest := numbers[len(numbers)-1]
	last, err = r.reportedRevision(ctx, newest)
	if err != nil || last > 0 || newest < 2 {
		return last, err
	}
	reserved, err := r.listReservations(ctx) // made by the newest restore, above the revision it continued from
	if err != nil || len(reserved) == 0 {
		return 0, err
	}
	return max(0, slices.Max(reserved)-Margin), nil
}

// reportedRevision returns the last revision that the names of a generation suggest; 0 if there is none.
func (r *Reader) reportedRevision(ctx context.Context, generation int) (int64, error) {
	fulls, _, err := r.listFulls(ctx, generation)
	if err != nil {
		return 0, err
	}
	objects, err := r.list(ctx, generation)
	return Generational{Fulls: fulls, Objects: objects}.lastReported(), err
}
