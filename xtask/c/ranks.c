/* N ranks write one file: stripes that lie side by side, each in its own, then in those of its neighbour; every byte is read back by
 * another rank than wrote it. With HDF5 (-DWITH_HDF5) the file is one dataset of as many columns.
 *
 * usage: ranks FILE STRIPES STRIPE_BYTES check|write
 * prints: seconds of all writes, of the slowest rank */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_HDF5
#include <hdf5.h>
#endif

static int rank, ranks;

static void need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Bytes of stripe `stripe` in round `round`. */
static void fill(unsigned char *into, size_t len, unsigned stripe, unsigned round)
{
    for (size_t i = 0; i < len; i++)
        into[i] = (unsigned char)(stripe * 131 + round * 17 + i * 7 + (i >> 8));
}

/* Which rank writes a stripe in a round. */
static int writer(unsigned stripe, unsigned round)
{
    return (int)((stripe + round) % (unsigned)ranks);
}

#ifdef WITH_HDF5
static hid_t file, set;

static void open_file(const char *name, int write)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    need(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0, "no parallel access");
    file = write ? H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(name, H5F_ACC_RDONLY, access);
    need(file >= 0, "cannot open the file");
    H5Pclose(access);
}

static void open_set(int write, unsigned stripes, size_t len)
{
    if (write) {
        hsize_t size[2] = {stripes, len};
        hid_t space = H5Screate_simple(2, size, NULL);
        set = H5Dcreate2(file, "stripes", H5T_NATIVE_UCHAR, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Sclose(space);
    } else {
        set = H5Dopen2(file, "stripes", H5P_DEFAULT);
    }
    need(set >= 0, "no data set");
}

static void move(unsigned char *bytes, unsigned stripe, size_t len, int write)
{
    hsize_t from[2] = {stripe, 0}, size[2] = {1, len};
    hid_t in_file = H5Dget_space(set), in_memory = H5Screate_simple(2, size, NULL);
    need(H5Sselect_hyperslab(in_file, H5S_SELECT_SET, from, NULL, size, NULL) >= 0, "no such stripe");
    herr_t done = write ? H5Dwrite(set, H5T_NATIVE_UCHAR, in_memory, in_file, H5P_DEFAULT, bytes)
                        : H5Dread(set, H5T_NATIVE_UCHAR, in_memory, in_file, H5P_DEFAULT, bytes);
    need(done >= 0, write ? "cannot write" : "cannot read");
    H5Sclose(in_file);
    H5Sclose(in_memory);
}

static void sync_file(void)
{
    need(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0, "cannot flush");
}

static void close_file(void)
{
    H5Dclose(set);
    need(H5Fclose(file) >= 0, "cannot close");
}
#else
static MPI_File file;

static void open_file(const char *name, int write)
{
    int mode = write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY;
    need(MPI_File_open(MPI_COMM_WORLD, (char *)name, mode, MPI_INFO_NULL, &file) == MPI_SUCCESS, "cannot open the file");
}

static void open_set(int write, unsigned stripes, size_t len)
{
    if (write)
        need(MPI_File_set_size(file, (MPI_Offset)stripes * (MPI_Offset)len) == MPI_SUCCESS, "cannot set the size");
}

static void move(unsigned char *bytes, unsigned stripe, size_t len, int write)
{
    MPI_Offset at = (MPI_Offset)stripe * (MPI_Offset)len;
    MPI_Status status;
    int done, count = 0;
    done = write ? MPI_File_write_at(file, at, bytes, (int)len, MPI_BYTE, &status)
                 : MPI_File_read_at(file, at, bytes, (int)len, MPI_BYTE, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    need(done == MPI_SUCCESS && (size_t)count == len, write ? "cannot write" : "cannot read");
}

static void sync_file(void)
{
    need(MPI_File_sync(file) == MPI_SUCCESS, "cannot sync");
}

static void close_file(void)
{
    need(MPI_File_close(&file) == MPI_SUCCESS, "cannot close");
}
#endif

int main(int argc, char **argv)
{
    const unsigned rounds = 3;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    need(argc == 5, "usage: ranks FILE STRIPES STRIPE_BYTES check|write");
    unsigned stripes = (unsigned)atoi(argv[2]);
    size_t len = (size_t)atol(argv[3]);
    int write = strcmp(argv[4], "write") == 0;
    unsigned char *bytes = malloc(len), *expected = malloc(len);
    need(bytes && expected, "no memory");
    double seconds = 0, slowest = 0;
    open_file(argv[1], write);
    open_set(write, stripes, len);
    for (unsigned round = write ? 0 : rounds - 1; round < rounds; round++) {
        if (write) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            for (unsigned stripe = 0; stripe < stripes; stripe++) {
                if (writer(stripe, round) != rank)
                    continue;
                fill(bytes, len, stripe, round);
                move(bytes, stripe, len, 1);
            }
            seconds += MPI_Wtime() - began;
        }
        if (write)
            sync_file();
        MPI_Barrier(MPI_COMM_WORLD);
        if (write)
            sync_file();
        /* Read by the next rank. */
        for (unsigned stripe = 0; stripe < stripes; stripe++) {
            if ((writer(stripe, round) + 1) % ranks != rank)
                continue;
            memset(bytes, 0, len);
            move(bytes, stripe, len, 0);
            fill(expected, len, stripe, round);
            need(memcmp(bytes, expected, len) == 0, "a stripe is not what another rank wrote");
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    close_file();
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && write)
        printf("seconds %.6f bytes %.0f\n", slowest, (double)rounds * stripes * (double)len);
    free(bytes);
    free(expected);
    MPI_Finalize();
    return 0;
}
